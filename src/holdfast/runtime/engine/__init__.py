"""The engine that claims and runs tasks, and the parent that starts it again."""
