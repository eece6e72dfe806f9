"""A task's code: the run that it acts with, its model calls and talks, scopes for foreign loops."""
