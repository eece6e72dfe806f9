"""Stories from a journal file and a far end's books.

Records are read with plain SQL beside the journal's own reader, so that a reader that looks away
is noticed too; only what lies sealed (a step's class) comes through the journal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

from holdfast.core.effect import Letter
from holdfast.core.ids import TaskId, effect_key_from_bytes, task_id_bytes
from holdfast.downstream.ledger import Done, Page, Seen
from holdfast.journal.records import RecordKind
from holdfast.journal.sqlite.rows import unpack_events
from holdfast_proofs.history.story import Asked, Landed, Story, Told

_RECORDS = (
    "SELECT r.n, r.seq, r.kind, r.what, r.ordinal, r.epoch, r.at_ms, r.effect_key, r.fingerprint, "
    "r.quiet FROM record r JOIN task t ON t.t = r.t WHERE t.task_id = ? ORDER BY r.n"
)


Ask = Callable[[str, tuple[Any, ...]], Sequence[tuple[Any, ...]]]  # Any: what a database takes and gives


def read_records(ask: Ask, task_id: TaskId) -> tuple[Told, ...]:
    """The clear columns of a task's records, in the order of their numbers."""
    rows = ask(_RECORDS, (task_id_bytes(task_id),))
    return tuple(
        Told(
            number=n,
            seq=seq,
            kind=RecordKind(kind),
            events=unpack_events(what),
            ordinal=ordinal,
            epoch=epoch,
            at_ms=at_ms,
            key=effect_key_from_bytes(key) if key else "",
            fingerprint=cast(bytes, fingerprint).hex(),
            quiet=bool(quiet),
        )
        for n, seq, kind, what, ordinal, epoch, at_ms, key, fingerprint, quiet in rows
    )


def make_story(
    task_id: str,
    records: tuple[Told, ...],
    letters: dict[str, Letter],
    *,
    effects: Iterable[Done] = (),
    requests: Iterable[Seen] = (),
    books: bool = True,
) -> Story:
    """The story of one task from its records and the far end's pages about it."""
    asked = [one for one in requests if one.step and one.outcome != "lookup"]
    reads = [one for one in asked if one.outcome == "read"]
    return Story(
        task_id=task_id,
        letters=letters,
        records=records,
        books=books,
        effects=(*map(_landed, effects), *map(_read, reads)),
        requests=tuple(Asked(n=one.n, step=one.step or "", key=one.key, body=one.body_sha256) for one in asked),
    )


def of_task(page: Page, task_id: str) -> tuple[list[Done], list[Seen]]:
    """What the books say about one task."""
    return ([one for one in page.effects if one.task == task_id], [one for one in page.requests if one.task == task_id])


def _landed(effect: Done) -> Landed:
    return Landed(
        n=effect.n,
        step=effect.step or "",
        at_ms=effect.at_ms,
        key=effect.key,
        fence=effect.fence,
        resource=effect.resource,
        body=effect.body_sha256,
    )


def _read(seen: Seen) -> Landed:
    return Landed(n=seen.n, step=seen.step or "", at_ms=seen.at_ms)
