"""The embedded journal: one SQLite file, nothing to start."""
