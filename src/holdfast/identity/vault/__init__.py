"""Where secret keys are kept: age files, the ways to open them, and the key sets inside."""
