"""One step: planned, started, sent, recorded; an open one is reconciled. May import gate and what is below it."""
