"""Tools: their contract, schema and validation, and how blocking ones run. May import secrets and http."""
