"""The identity's files in the agent's folder: its own log, the pending record, identity.json."""
