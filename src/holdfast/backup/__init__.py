"""Backups: places, Borg, staging and manifest, heads, verified restores, retention."""
