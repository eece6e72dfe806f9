"""Identities cut short at every call: lives.py says what must hold, trials.py how it is tried."""
