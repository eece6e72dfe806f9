"""Making a snapshot and proving it: staging, databases, one place's run, the test restore. Imports
chain, archive and places.
"""
