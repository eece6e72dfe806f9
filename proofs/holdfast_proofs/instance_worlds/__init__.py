"""`python -m holdfast_proofs.instance_worlds`: two to four instances of one agent in a world of its own time.

The agent, its key log, its roster, who may act, and the merges of memory are the product's own code; the shared journal
is a table in memory that a host may not reach, and time is a number. By its seed a world cuts hosts off and heals them,
pauses and restarts instances, sets their clocks, fills their disks, puts a folder back from an old copy, copies a
folder, takes a package twice, enrols, removes, promotes and yields, and lets people save memory files.

Checked at every look: a folder that acts was an enrolled primary within the last look and lease; a copy never acts.
At the end the network is whole, and of all enrolled instances: they know one roster; those act that it calls primary;
their memory has the same bytes, each line once and no removed one, and nothing of a folder that was removed before it
was written. With `--self-test` each planted fault must be noticed.
"""
