"""The journal's verbs as SQL: sessions, claims, tasks, inbox, remarks, upkeep."""
