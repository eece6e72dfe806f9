"""Load with faults: real workers on one journal, real far ends, deaths and lost replies.

Everything here is a process of its own: `holdfast worker` with its supervising parent, one
counting far end per effect class, and this one, which submits, kills, decides what is parked and
judges. Nothing is simulated and nothing is divided; what the far ends' books say is what happened.

Two runs of the same load, one after the other: calm (nobody dies, nothing is lost) and with
faults. The first gives the throughput that the second is compared with.
"""
