"""An agent's move to another host, killed at every call: at no instant can both copies run.

python -m holdfast_proofs.moves --points 40
"""
