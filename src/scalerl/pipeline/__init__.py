"""Who waits for whom: the loop, its schedules and its ledger. It is given a crew and a clock."""
