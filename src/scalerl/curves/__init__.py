"""The law of a learning curve: fit, forecast, compare, back-test."""
