"""What the operational keys say besides key changes: answers, certificates, claims, heads, profiles."""
