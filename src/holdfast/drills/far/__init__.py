"""A drill on another machine, by ssh: our side, and the script that is sent there."""
