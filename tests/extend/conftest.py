"""The toy parts are imported by their tests alone: importing them registers their names."""

collect_ignore = ["toy_choices.py", "toy_parts.py"]
