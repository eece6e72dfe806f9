"""Enrolled instances of one agent, each a worker on a host of its own, while one after the other is lost.

Three instances share a journal in PostgreSQL and work; beside them a standby and a copy of the folder, which may not.
A round takes one of the three away: killed, stopped, cut off, or with its disk deleted; or it breaks the network in
another way. The others must continue its tasks, and it must not act beside them when it is back. `promotes` does the
same where each instance has a journal of its own and a person promotes the standby.
"""
