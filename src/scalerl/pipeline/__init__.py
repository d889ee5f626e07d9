"""The training loop, its schedules, its checkpoints and its ledger, for a given crew and clock."""
