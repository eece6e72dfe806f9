"""What commands read from a person: words, secrets, files, and confirmations."""
