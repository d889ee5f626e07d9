"""Where the parts of a run live: processes on this machine, or one process on a virtual clock."""
