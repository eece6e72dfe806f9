"""The signed heads of an agent's snapshots: where they are kept, and what they say together."""
