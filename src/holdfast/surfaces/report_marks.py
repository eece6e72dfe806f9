"""Which reports there must be: `drills.json` in the instance folder of this host, apart from the reports themselves.

A chain shows a report that is missing between two others. The newest one has nothing after it, so removing
it leaves a chain that looks whole. Therefore this host remembers the newest report of each drill, and those that it has
found missing. What is remembered here can only take a proof away: a pass counts by its sealed report alone.

An agent that was restored on another host has no such file there: then nothing is known to be missing.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from holdfast.core.decoding import decode_json
from holdfast.errors import HoldfastError
from holdfast.host.private_files import ensure_private_folder, read_private, write_atomically
from holdfast.layout.agent_home import AgentHome

FILE = "drills.json"
FILE_BYTES_MAX = 1 << 20
LOST_MAX = 100


class MarkedReport(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    n: int
    digest: str  # of its seal
    drill: str
    verdict: str
    ended_ms: int


class ReportMarks(msgspec.Struct, frozen=True, kw_only=True):
    format: int = 1
    newest: dict[str, MarkedReport] = {}  # by drill
    lost: tuple[MarkedReport, ...] = ()  # were missing when a later report was written


def read_marks(home: AgentHome) -> ReportMarks:
    """Nothing where there is no file. Raises ValueError where it cannot be read."""
    try:
        return decode_json(read_private(home.instance / FILE, FILE_BYTES_MAX), ReportMarks)
    except FileNotFoundError:
        return ReportMarks()
    except (msgspec.DecodeError, UnicodeError, RecursionError, HoldfastError, OSError) as error:
        raise ValueError(f"{home.instance / FILE} cannot be read: {error}") from None


def note_report(home: AgentHome, report: MarkedReport, *, there: Iterable[str]) -> None:
    """Remember the newest report, and what is missing now. `there`: digests of the seals before it that count."""
    try:
        before = read_marks(home)
    except ValueError:
        before = ReportMarks()
    lost = (*before.lost, *(one for one in find_missing(before, there) if one not in before.lost))[-LOST_MAX:]
    ensure_private_folder(home.instance)
    after = ReportMarks(newest={**before.newest, report.drill: report}, lost=lost)
    write_atomically(home.instance / FILE, msgspec.json.encode(after))


def find_missing(marks: ReportMarks, there: Iterable[str]) -> list[MarkedReport]:
    """What was sealed here and does not count any more, oldest first."""
    known = {one.digest: one for one in (*marks.lost, *marks.newest.values())}
    missing = [known[digest] for digest in known.keys() - set(there)]
    return sorted(missing, key=lambda one: (one.n, one.ended_ms))
