"""The algorithm of a recipe: advantages, losses, filters, curriculum and length control, as pure
functions and small frozen objects."""
