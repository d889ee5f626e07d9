"""Who learns. A trainer has four methods, whatever is behind them: step, weights, save, load."""
