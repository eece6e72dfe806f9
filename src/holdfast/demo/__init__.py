"""The demo: an agent is killed inside a payment, another worker resumes, the far ends count.

May import every room but `cli`, `web` and `testing`.
"""
