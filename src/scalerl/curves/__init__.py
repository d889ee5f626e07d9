"""Learning curves: fit a law, forecast, compare runs, back-test."""
