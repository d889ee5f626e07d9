"""Who writes the text. An engine has five methods, whatever is behind them: submit, step, load,
abort, health (interface.py); recipes name one (registry.py)."""
