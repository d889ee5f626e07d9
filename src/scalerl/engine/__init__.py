"""Who writes the text. An engine has four methods, whatever is behind them: submit, step,
load_weights, health."""
