"""What a task may do: tools, arguments, amounts and rates, and what needs a person's approval."""
