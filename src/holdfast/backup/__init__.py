"""Snapshots of an agent in several places: made, proved by test restores, restored, pruned.

`engine.py` is the port to the backup engine, `open_engine.py` binds it. May import identity, memory,
layout, journal's ports and all below them.
"""
