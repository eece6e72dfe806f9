"""Random schedules of owner, thieves, lying witnesses and lost letters over the log's own rules."""
