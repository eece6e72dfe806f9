"""Several instances of one agent: documents that they share, and what they send each other."""

from __future__ import annotations

from holdfast.errors.base import BadUsage, Conflict


class BadUpdate(BadUsage):
    """A change to a shared memory file is damaged, or is not one. Nothing was changed. The instance that made it sends
    it again; if it stays damaged, remove the file that carries it."""

    code = "bad-update"
    default_hint = "nothing was changed; the other instance sends it again"


class HistoryMissing(Conflict):
    """A change to a shared memory file builds on history that one of the two instances no longer keeps, because one of
    them was away for long or was restored from an old backup. Holdfast then asks for the whole document and merges the
    lines; you do nothing."""

    code = "history-missing"
    default_hint = "nothing was changed; Holdfast asks the other instance for its whole document"
