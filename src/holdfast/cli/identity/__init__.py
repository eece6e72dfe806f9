"""`holdfast identity` and its verbs."""
