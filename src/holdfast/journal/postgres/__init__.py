"""The journal in PostgreSQL: any number of workers on any number of hosts share it."""
