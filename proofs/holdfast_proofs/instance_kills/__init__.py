"""Invite, join, yield, promote and remove, killed at every call: one holder at most, and the same command finishes it.

python -m holdfast_proofs.instance_kills --points 40
"""
