"""Breaches that were found once: each has a name and one command that would show it again."""
