"""What keeps backups going without a person: due runs, schedules, pruning, checks."""
