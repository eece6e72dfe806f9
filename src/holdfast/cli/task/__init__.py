"""`holdfast submit`, `worker`, `task`, `approval` and `tool`."""
