"""A journal without a disk, for simulation and tests."""
