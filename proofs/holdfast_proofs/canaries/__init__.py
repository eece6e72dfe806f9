"""Planted secrets: tools that leak them in every way, and the search for what they left."""
