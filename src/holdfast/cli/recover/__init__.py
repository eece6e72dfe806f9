"""`holdfast recover` and `migrate`."""
