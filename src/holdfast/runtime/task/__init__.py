"""A task's code: its run, its model calls and talks, scopes for foreign loops. May import step and below."""
