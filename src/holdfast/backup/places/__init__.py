"""Where backups go: addresses, what is known of each place, and the files beside a repository."""
