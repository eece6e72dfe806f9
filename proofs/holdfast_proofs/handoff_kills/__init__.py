"""An agent killed at random moments; then the files alone must answer the four questions.

    python -m holdfast_proofs.handoff_kills --points 200

A worker serves errands that plan, ask, pay and sleep; a person submits them, answers, settles, and
writes down when. At a random moment the worker is killed with SIGKILL. Only handoff.md,
HEARTBEAT.md and MEMORY.md are copied to an empty folder, without the journal, and what they say is
compared with what the person and the tools have written down themselves.

What counts as correct: everything that was true before the file's *as of*, and everything that is
older than the lag when the worker dies, is in the files; nothing in them is untrue.
"""
