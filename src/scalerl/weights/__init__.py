"""Weight channels: how new weights get from the trainer to the generators."""
