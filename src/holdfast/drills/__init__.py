"""Drills: a failure made for real in a shadow of the agent, recovered by the commands of the runbook, and measured.

A drill is mostly data and checks; `run.py` has what all of them share, `catalogue.py` lists them. May import every room
below `demo`.
"""
