"""Who waits for whom: schedules, processes, weights on their way, and the loop over them."""
