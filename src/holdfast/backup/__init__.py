"""Backups: places, Engine, staging and manifest, heads, verified restores, retention."""
