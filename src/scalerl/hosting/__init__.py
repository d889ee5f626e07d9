"""Serving a model at an OpenAI-compatible address: `scalerl host`."""
