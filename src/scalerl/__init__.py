"""Every RL run comes with a forecast."""
