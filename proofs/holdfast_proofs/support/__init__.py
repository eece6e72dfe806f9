"""What proofs and tests share: commands as processes, agents to try things on, certificates."""
