"""Where backups go: addresses, the agent's places and their companion files, and the last results of
each place. Imports the engine's port, never snapshot, restore or upkeep.
"""
