"""Chat completions, as OpenAI and compatible servers write them."""
