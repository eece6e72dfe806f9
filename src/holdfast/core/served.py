"""Which journals a key ring serves, and the salts that keep their task ids apart; pure, and the port of such a ring.

A task id is made from the request id and `k_effect`, and effect keys from the task id. So two journals with one ring
would give one request id the same effect keys, and a service would take the second journal's payment for a repeat of
the first one's. Therefore the ring lists its journals. The first has no salt: its ids are made as they always were.
Each further one has 16 random bytes that enter its task ids. The salt is in the ring, and so in every copy of
escrow.age, because effect keys must be computable after the journal is lost.

Order of writes: the ring with its copies, then the journal's own row `task_salt`, then the first task. A kill leaves an
empty journal that the ring knows, or one that gets its salt when it is opened next.

An empty journal that takes the place of a lost one takes its salt too. The lost one's id stays in `was`: should its
file turn up, only a restore makes it the journal again, because both would give their tasks the same ids.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, cast

from holdfast.core.ports import KeyRing
from holdfast.errors import BadInput

PLAIN, SALTED = 1, 3  # formats of a ring; an older Holdfast, which knows no salts, refuses the second
SALT_BYTES = 16
ID_BYTES = 8
NAME_CHARS_MAX = 255
URL, URL_CHARS_MAX = "postgresql://", 2_000  # how a journal on a server is known
JOURNALS_MAX = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedJournal:
    """One journal of a ring."""

    id: str
    name: str  # of its file when it was first opened
    salt: bytes = field(default=b"", repr=False)
    was: tuple[str, ...] = ()  # ids of lost journals whose place it took


Served = tuple[ServedJournal, ...]


def find_served(served: Served, journal_id: str) -> ServedJournal | None:
    return next((one for one in served if one.id == journal_id), None)


def find_heir(served: Served, journal_id: str) -> ServedJournal | None:
    """The journal that took the place of this one, which was given up."""
    return next((one for one in served if journal_id in one.was), None)


def salt_of(served: Served, journal_id: str) -> bytes:
    found = find_served(served, journal_id)
    return b"" if found is None else found.salt


def with_journal(served: Served, new: ServedJournal) -> Served:
    """The list with this journal; as it is if it has the journal already."""
    if find_served(served, new.id) is not None:
        return served
    if len(served) >= JOURNALS_MAX:
        raise BadInput(f"these keys serve {JOURNALS_MAX:,} journals already", hint="put the journal into a new folder")
    return (*served, new)


def with_heir(served: Served, heir: str, *, lost: Collection[str], name: str) -> Served:
    """The list in which this journal has the place and the salt of a lost one, known by an id, else by its name."""
    by_id = [one for one in served if not {one.id, *one.was}.isdisjoint(lost)]
    old = next(reversed(by_id or [one for one in served if one.name == name]), None)
    ids = [*lost] if old is None else [*old.was, *lost, old.id]
    was = tuple(dict.fromkeys(one for one in ids if one != heir))
    new = replace(old or ServedJournal(id=heir, name=name), id=heir, name=name, was=was)
    return (*(one for one in served if one is not old), new)


def format_of(served: Served) -> int:
    return SALTED if any(one.salt for one in served) else PLAIN


def listed(served: Served) -> list[dict[str, Any]]:  # Any: JSON
    return [
        {
            "id": one.id,
            "name": one.name,
            **({"salt": one.salt.hex()} if one.salt else {}),
            **({"was": list(one.was)} if one.was else {}),
        }
        for one in served
    ]


def parse_served(value: object, *, ring_format: object = SALTED) -> Served:
    """What `listed` made, in a ring of this format. Raises ValueError, TypeError, KeyError, AttributeError."""
    if ring_format not in (PLAIN, SALTED):
        raise ValueError("unknown format")
    if not isinstance(value, list) or len(cast("list[Any]", value)) > JOURNALS_MAX:
        raise ValueError("not a list of journals")
    found = tuple(_parsed(one) for one in cast("list[dict[str, Any]]", value))
    if len({one.id for one in found}) != len(found):
        raise ValueError("one journal is listed twice")
    if ring_format == PLAIN != format_of(found):
        raise ValueError("a salt in a ring without salts")
    return found


def _parsed(fields: dict[str, Any]) -> ServedJournal:  # Any: JSON not yet checked
    if not fields.keys() <= {"id", "name", "salt", "was"}:
        raise ValueError("unknown fields")
    name = fields["name"]
    if not isinstance(name, str) or not _is_name(name):
        raise ValueError("not the name of a file, nor a url")
    salt = _bytes(fields["salt"], SALT_BYTES) if "salt" in fields else b""
    was = tuple(_bytes(one, ID_BYTES).hex() for one in fields.get("was", []))
    return ServedJournal(id=_bytes(fields["id"], ID_BYTES).hex(), name=name, salt=salt, was=was)


def _bytes(text: object, size: int) -> bytes:
    if not isinstance(text, str):
        raise TypeError("hex digits must be text")
    raw = bytes.fromhex(text)
    if len(raw) != size:
        raise ValueError(f"there must be {size} bytes")
    return raw


class ServingRing(KeyRing, Protocol):
    """A key ring that knows its journals."""

    @property
    def journals(self) -> Served: ...

    def change_journals(self, decide: Callable[[Served], Served]) -> None:
        """Change the list, in the ring and in every copy of it, one process at a time. On return it is durable. Raises
        what a place that cannot be written does; the ring itself is then as it was."""
        ...


def _is_name(name: str) -> bool:
    """Whether a journal can be known by it: a file in the folder, or a url."""
    if name.startswith(URL):
        return len(name) <= URL_CHARS_MAX
    return 0 < len(name) <= NAME_CHARS_MAX and "/" not in name and name not in (".", "..")
