"""Environments: tasks of several turns, with tools or a hidden state (docs/how-to/environments)."""
