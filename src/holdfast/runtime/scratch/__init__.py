"""Working files of a task that survive the loss of the worker's disk. May import session and what is below it."""
