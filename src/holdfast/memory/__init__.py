"""The agent's folder: what it remembers, what it hands off, and which of its files are covered."""
