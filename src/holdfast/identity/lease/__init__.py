"""Which instance of an agent may act: instance keys, the arbiter, and the holder of the lease."""
