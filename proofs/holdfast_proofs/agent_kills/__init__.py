"""An example agent killed at every call it makes, and resumed by another program.

    python -m holdfast_proofs.agent_kills examples/travel

The agent of the example's `app.py` runs once undisturbed against counting far ends and a scripted
model; then once for each call that it made to the system, killed with SIGKILL before or after that
call, and brought to its end by a second program with the same journal and an empty scratch disk.
What both left is compared with the undisturbed run: the same effects, each once, the same answer,
the same files byte for byte, and every recorded prompt still what its digest says.
"""
