"""The engine that claims and runs tasks, and the parent that restarts a worker. May import every other room here."""
