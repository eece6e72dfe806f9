"""Borg, the backup engine: its verbs, its process, and what its messages mean."""
