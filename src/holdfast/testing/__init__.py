"""Suites and kits that test Holdfast, and what is built on it."""
