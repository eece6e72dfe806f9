"""`holdfast paper` and `share`."""
