"""Engines: they generate rollouts. Each has five methods: submit, step, load, abort, health
(interface.py). Recipes choose one by name (registry.py)."""
