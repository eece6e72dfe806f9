"""Who an agent is: an id that never changes, and keys that do.

Start with `log.py` (which records count), then `records.py` (what they are) and `witness.py`
(who sees which came first). docs/explanation/identity.md says why, docs/formats/identity-log.md
how it is written down. Nothing here is loaded by `import holdfast`.
"""
