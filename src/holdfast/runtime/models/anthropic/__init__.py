"""Messages, as Anthropic writes them."""
