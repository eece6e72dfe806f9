"""Memory that several instances of one agent share: line documents that merge without a common clock or lock.

`line_document.py` is the only module that imports Loro; the extra `instances` brings it."""
