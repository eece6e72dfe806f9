"""The proofs of Holdfast itself: sweeps, explorer, simulation, fuzz, mutants, soak. Not in the wheel."""
