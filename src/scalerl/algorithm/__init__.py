"""What a recipe computes, as pure functions and small frozen objects."""
