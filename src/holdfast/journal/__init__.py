"""Where tasks, steps, blobs and leases are kept: one contract, several journals."""
