"""What a person prints: phrase, shares, recovery sheet and card, and keys derived from the phrase."""
