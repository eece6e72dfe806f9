"""Relays: the server that witnesses key logs and keeps profiles and backup heads, and an agent's use of its relays.

The calls of one relay are in `identity/witness/relay_link.py`, because a witness may be a relay. May import identity
and everything before it.
"""
