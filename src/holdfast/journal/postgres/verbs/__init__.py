"""The journal's verbs as SQL: sessions, claims, inbox, remarks, statements, upkeep, lists."""
