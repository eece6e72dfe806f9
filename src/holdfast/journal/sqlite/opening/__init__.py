"""Opening, checking and restoring the journal's file."""
