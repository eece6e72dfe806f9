"""The agent's folder: the name of every file in it, its settings, and what a backup covers. Imports host,
core and errors.
"""
