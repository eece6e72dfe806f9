"""The signed heads of an agent's snapshots: kept, found everywhere, and judged together. Imports
archive and places.
"""
