"""Backups, test restores and restores, killed at the calls that they make to the system.

`python -m holdfast.testing.backup_kills --points 300` takes that many points, spread over all
calls of the three acts; without it every call is one. Each trial is a whole small agent with a
real repository, put back as it was, one act in a process that is killed, and then a judge who
knows nothing but what is on the disk.
"""
