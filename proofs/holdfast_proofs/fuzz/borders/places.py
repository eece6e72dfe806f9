"""Borders of the places: their list, the files beside a repository, and what Borg says."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import msgspec

from holdfast.backup.borg.log import LogLine, Said, Verb, find_trouble, parse_line
from holdfast.backup.borg.process import amount_of
from holdfast.backup.places.address import PlaceKind
from holdfast.backup.places.companion_files import files_of
from holdfast.backup.places.places import FORMAT, Place, parse_places
from holdfast_proofs.fuzz.feed import law

WHERE = Path("places.json")
_PLACE = Place(
    name="nas", kind=PlaceKind.FOLDER, address="/mnt/nas", place_id="p", repository_id="r", agent="ada", added_ms=0
)
PLACES = (msgspec.json.encode({"format": FORMAT, "places": [_PLACE]}),)
LOGS = (
    b'{"type": "log_message", "levelname": "ERROR", "msgid": "Repository.DoesNotExist", '
    b'"message": "gone", "time": 1.5}',
    b'{"type": "archive_progress", "original_size": 5, "nfiles": 1}',
    b'{"type": "progress_percent", "current": 1, "total": 2, "message": "x"}',
    b"Connection closed by remote host",
)
WORDS = (
    b'"name":"../x"',
    b'"agent":".."',
    b'"kind":"ssh"',
    b'"address":"ssh://a@b/c"',
    b'"epoch":0',
    b'"msgid":"LockTimeout"',
    b'"current":-1',
    b'"original_size":1e400',
    b"ustar  \x00",
    b"././@PaxHeader",
    b"\x80" + b"\xff" * 11,
    b"GNU.sparse.map=",
    b"\x00" * 512,
    b"\xff",
)


def _tar() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name in ("kel.jsonl", "keys/nas.key"):
            member = tarfile.TarInfo(name)
            member.size = 5
            tar.addfile(member, io.BytesIO(b"hello"))
    return out.getvalue()


TARS = (_tar(),)


def places(raw: bytes) -> None:
    for one in parse_places(raw, where=WHERE):
        law("/" not in one.name and one.name not in ("", ".", ".."), "a name that leads elsewhere")
        law(one.agent not in ("", ".", ".."), "an agent that leads elsewhere")


def beside(raw: bytes) -> None:
    found = files_of(raw, where="nas")
    law(sum(map(len, found.values())) <= 2 * len(raw) + 1024, "more than was sent")


def said(raw: bytes) -> None:
    """Whatever Borg writes, it ends in an error of ours or in progress."""
    parsed = [parse_line(line) for line in raw.split(b"\n")]
    lines = tuple(line for line in parsed if isinstance(line, LogLine))
    for line in lines:
        amount_of(line)
    plain = tuple(line for line in parsed if isinstance(line, str))
    error = find_trouble(Said(rc=2, lines=lines, plain=plain), verb=Verb.CREATE, where="nas")
    law(error is not None and error.message != "", "an end without a word")
