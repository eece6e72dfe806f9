"""Several instances of one agent: which of them may act, and what they share."""
