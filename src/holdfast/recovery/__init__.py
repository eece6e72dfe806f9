"""Bringing an agent back or elsewhere: look (survey), then act (recover, move, adopt)."""
