"""`holdfast drill`."""
