"""Who an agent is: an id that never changes, and keys that do.

Start with `log.py` (which records count), then `records.py` (what they are) and `witness.py` (who sees which
came first). docs/explanation/identity.md says why, docs/formats/identity-log.md how it is written down. The
secrets behind the keys: `phrase.py` and `derive.py` (the words on paper), `vault.py` (what is kept on disk),
`paper.py` (the sheet itself). Nothing here is loaded by `import holdfast`.
"""
