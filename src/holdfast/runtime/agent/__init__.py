"""The ready agent: plan-and-act loop, conversations, and its memory tools."""
