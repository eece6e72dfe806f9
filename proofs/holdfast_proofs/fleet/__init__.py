"""Many agents in one worker process: what they cost, and whether a flood of one of them starves the others."""
