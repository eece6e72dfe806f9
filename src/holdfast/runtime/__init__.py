"""Tools and effects, the task context, the worker, resuming and reconciling."""
