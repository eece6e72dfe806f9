"""Borg as a backup engine: its verbs, its process, and what its messages mean. Only open_engine.py
imports this folder.
"""
