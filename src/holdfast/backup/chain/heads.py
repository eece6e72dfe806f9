"""Where heads are kept: `heads.jsonl` in the agent's folder, beside repositories, with witnesses.

One form everywhere: lines of signed heads, only ever appended. Each line is written and synced
before anything relies on it. A crash inside an append leaves a last line without its end; nothing
relied on it, so the next append cuts it off. Every other line that cannot be read is reported, and
hides none of the others: a damaged copy of the chain must not stop a restore that needs one line.

The companion files of a repository hold a copy of the file in the agent's folder; it says what is
known, not what that repository holds. A place holds a snapshot if its repository lists the archive
that a head names.

The order around one snapshot, which makes every kill harmless:

    1. the head is signed, and appended to the file in the agent's folder: its number is used up,
       whatever becomes of the snapshot, so no second head is ever signed for it;
    2. the archive is made, with the head inside;
    3. the archive is seen in the repository's own listing;
    4. the heads are put into its companion files, then into those of other places and witnesses.

Before 2 is done the place holds nothing new: the engine lists an archive whole, or not at all.
Between 2 and 4 it holds an archive that no head outside the agent's folder names: if the folder is
lost, the head inside the archive names it (sources.py). So a head found outside means that some
place once held its snapshot; if no place holds it any more, it was lost there.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.errors import BackupDamaged, BadRecord
from holdfast.host.line_file import append_line
from holdfast.host.private_files import explained, open_private
from holdfast.identity.records.canonical import LINE_BYTES_MAX
from holdfast.identity.records.signed import Signed
from holdfast.identity.statements.statements import Head, parse_head

HEADS = "heads.jsonl"
FILE_BYTES_MAX = 256 << 20
FINDINGS_MAX = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The heads of one source as it has them, not judged yet, and what could not be read."""

    heads: tuple[Signed[Head], ...] = ()
    findings: tuple[str, ...] = ()
    absent: bool = False  # there is no such file


@dataclass(frozen=True, slots=True)
class HeadFile:
    """A file of heads."""

    path: Path

    def read(self) -> Held:
        """All lines; none where there is no file. Raises BackupDamaged for one beyond measure."""
        try:
            fd = open_private(self.path, os.O_RDONLY)
        except FileNotFoundError:
            return Held()
        with open(fd, "rb") as file:
            if os.fstat(fd).st_size > FILE_BYTES_MAX:
                raise BackupDamaged(
                    f"{self.path} is larger than {FILE_BYTES_MAX:,} bytes, the limit for a file of heads"
                )
            raw = file.read(FILE_BYTES_MAX)
        return parse_lines(raw, where=str(self.path))

    def append(self, head: Signed[Head]) -> None:
        """On return the head is in the file, durably. Does nothing where it is there already."""
        try:
            append_line(self.path, head.line(), bytes_max=FILE_BYTES_MAX)
        except OSError as error:
            raise explained(error, self.path) from error

    def append_missing(self, heads: Iterable[Signed[Head]]) -> None:
        known = {one.digest for one in self.read().heads}
        for head in heads:
            if head.digest not in known:
                self.append(head)


def parse_lines(raw: bytes, *, where: str) -> Held:
    """Heads of a file; the last line counts only with its end."""
    heads: list[Signed[Head]] = []
    findings: list[str] = []
    *lines, _torn = raw.split(b"\n")
    for number, line in enumerate(lines, 1):
        try:
            if len(line) > LINE_BYTES_MAX:
                raise BadRecord("too long")
            heads.append(parse_head(line))
        except BadRecord as error:
            findings.append(f"{where} line {number}: {error.message}")
    more = len(findings) - FINDINGS_MAX
    shown = (*findings[:FINDINGS_MAX], *([f"and {more} more"] if more > 0 else []))
    return Held(heads=tuple(heads), findings=shown)


def parse_copy(raw: bytes | None) -> Held:
    """The heads in companion files. That file is written whole: a torn last line is damage."""
    if raw is None:
        return Held(absent=True)
    held = parse_lines(raw, where=HEADS)
    if raw and not raw.endswith(b"\n"):
        torn = f"{HEADS}: the last line has no end: the file was cut off"
        held = replace(held, findings=(*held.findings, torn))
    return held
