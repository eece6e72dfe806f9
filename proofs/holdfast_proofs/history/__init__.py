"""What happened to a task, put into one order from every witness, and held against I1 to I9."""
