"""Where the workers of a run are: processes, actors of a Ray cluster, or inline in one process."""
