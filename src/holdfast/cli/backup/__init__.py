"""`holdfast backup` and `place`."""
