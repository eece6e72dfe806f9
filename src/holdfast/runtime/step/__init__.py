"""One step: planned, started, sent, recorded; what is found open is reconciled."""
