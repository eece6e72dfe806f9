"""The command line: one folder per noun, one module per command. May import every room; no room imports it."""
