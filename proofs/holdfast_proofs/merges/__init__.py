"""Five instances share a memory file: do all end with the same bytes, with no line lost, doubled or back?

A schedule is a seed: people edit the files, the journal's entries are written on every instance, passes merge, updates
are lost, repeated and reordered, processes die inside a pass, histories are compacted, folders are restored from old
snapshots, sidecars are lost. Then everything is delivered, and the files are compared with what people did.
The documents and what they send each other are the product's own code; the file is a list of lines.
"""
