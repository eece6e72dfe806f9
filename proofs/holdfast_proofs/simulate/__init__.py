"""Deterministic simulation: the production engine in worlds where everything goes wrong.

A seed is a world: a machine with one to three worker processes, a few tasks, one far end per
effect class, a person, and a choice of faults. The engine, its steps, books and runs are the
ones that are shipped, over the memory journal; only time, chance, the network and the far ends
are simulated. The same seed gives the same world, event by event.

    python -m holdfast_proofs.simulate --seeds 500         many worlds, one line each thousand
    python -m holdfast_proofs.simulate --seed 42           one world, with its whole trace
    python -m holdfast_proofs.simulate --self-test         every planted bug must be found

In *safety* mode faults go on until the end, and then the far ends' books are compared with the
journal (checks.py). In *liveness* mode the faults stop, and every task must have ended or wait
for a person within three lease times and the quiet time.
"""

from holdfast_proofs.simulate.run import Mode, Verdict, simulate

__all__ = ["Mode", "Verdict", "simulate"]
