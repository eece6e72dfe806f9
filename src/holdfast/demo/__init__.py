"""The demo: an agent is killed inside a payment, another worker resumes, the far ends count."""
