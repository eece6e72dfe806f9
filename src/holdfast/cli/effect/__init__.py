"""`holdfast effect` and its verbs."""
