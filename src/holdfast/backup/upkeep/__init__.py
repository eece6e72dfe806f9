"""Backups without a person: which places are due, notices, what may be pruned, and checks of a place.
The top folder of backup.
"""
