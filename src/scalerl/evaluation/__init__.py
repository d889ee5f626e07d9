"""Scoring models: any model, checkpoint, or every checkpoint of a run, on any task."""
