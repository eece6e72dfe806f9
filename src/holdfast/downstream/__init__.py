"""What a far end needs: the idempotency key table, and small counting services with faults.

The services are real HTTP/1.1 servers in processes of their own, outside the crash domain of
the worker. They keep their own books, so they are the judge of "once": not what the journal
says, but what arrived here and what was done.

    python -m holdfast.downstream --class keyed --port 0 --log effects.jsonl

From Python, `holdfast.downstream.process` starts one and talks to it.
"""
