"""A relay's store, an agent's send and an agent's intake, killed before every call that they make to the system.

    store.py    what a relay is asked, in parts; what it has answered; whether it still knows it after a kill
    agents.py   one message sent, one message taken in, by a whole agent over three relay processes
    trials.py   each part cut short in a forked process: kills, full disks, failing syncs, clocks 24 hours off

True of every trial: the store opens; what was answered or acknowledged is still true; the next try ends well; and a
message is at its relays, and in its recipient's journal, once.
"""
