"""What a task may do: tools, arguments, amounts, rates, approvals. May import scratch and what is below it."""
