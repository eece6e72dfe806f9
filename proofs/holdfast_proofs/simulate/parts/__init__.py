"""The parts of a simulated world: clock, loop, workers, far ends, people."""
