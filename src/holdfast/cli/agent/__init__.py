"""`holdfast init`, `adopt`, `memory`, `handoff` and `secret`."""
