"""`holdfast mail`: messages between agents."""
