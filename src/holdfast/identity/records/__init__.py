"""The records of a key log as values and bytes: fields, spelling, signatures. Imports no other
room of identity.
"""
