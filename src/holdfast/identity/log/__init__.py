"""Which records of a key log count: pure decisions over records, and the drafts of new ones."""
