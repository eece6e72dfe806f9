"""One flipped bit anywhere in a journal and what lies beside it."""
