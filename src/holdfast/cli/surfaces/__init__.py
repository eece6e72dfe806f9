"""Commands about surfaces, levels and targets."""
