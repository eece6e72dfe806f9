"""MEMORY.md, daily logs, HEARTBEAT.md and the hand-off: written from the journal, read and searched.
Imports layout, journal's contract and all below them.
"""
