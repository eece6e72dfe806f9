"""What this machine keeps beside the journal's file: session pages, locks, marks, reserved space."""
