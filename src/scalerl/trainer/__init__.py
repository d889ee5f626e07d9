"""Who learns. A trainer takes groups and gives weights, whatever is behind it (interface.py);
recipes name one (registry.py)."""
