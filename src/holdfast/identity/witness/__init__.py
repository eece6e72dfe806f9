"""Witnesses of a key log: the decision, the folder that keeps logs, and looking at several of them."""
