"""The borders that are fuzzed, each a function from bytes to an outcome."""
