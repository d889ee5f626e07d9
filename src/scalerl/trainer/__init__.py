"""Trainers: they learn from groups of rollouts and give weights (interface.py). Recipes choose one
by name (registry.py)."""
