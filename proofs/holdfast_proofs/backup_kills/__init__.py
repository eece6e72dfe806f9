"""Backups, test restores, restores, prunes, first runs, recoveries and revocations, killed wherever they are.

`python -m holdfast_proofs.backup_kills --points 300` takes that many points, spread over all
calls that the seven acts make to the system; without it every call is one. Each trial is a whole
small agent with a real repository, put back as it was, one act in a process that is killed, and
then a judge who knows nothing but what is on the disk.
"""
