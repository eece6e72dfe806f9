"""Binds adapters to ports: opens journals, agents and workers. May import every room below it."""
