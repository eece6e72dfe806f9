"""The ready agent: plan-and-act loop, conversations, and its memory tools. May import task and what is below it."""
