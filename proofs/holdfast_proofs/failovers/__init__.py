"""Loss of servers and regions: two PostgreSQL servers in two network namespaces, the link between them cut.

A region is a network namespace with a server of its own. Between the regions is a third namespace, the middle, in which
the proof itself runs; it has a bridge for the link between the regions, and one for the world (services that tasks
call). A link is cut by taking its end in the middle down: packets vanish without a word, as they do when a cable is
cut. A stopped process would not do: what its kernel has taken is delivered later.

The servers sync their disks, and a commit waits for the synchronous standby. A promotion is `pg_ctl promote`; nobody
tells the old server, which goes on in its region and is still there after the link is healed.
"""
