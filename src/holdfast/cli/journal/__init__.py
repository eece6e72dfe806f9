"""`holdfast journal`."""
