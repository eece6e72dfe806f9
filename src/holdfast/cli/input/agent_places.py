"""Folders and files that a person names: defaults of vault, witness and second place; copies of a key log."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from holdfast.cli.input.terminal import ask_line
from holdfast.cli.screen.screen import talk
from holdfast.errors import BadInput, BadSheet
from holdfast.host.private_files import disk_of
from holdfast.identity.files.own_log import FILE_BYTES_MAX, RECEIPTS
from holdfast.identity.paper.paper import read_card
from holdfast.identity.paper.scan import PICTURE_BYTES_MAX, PICTURES, scan
from holdfast.identity.witness.witness import LogCopy
from holdfast.layout.witness_address import (
    WitnessAddress,
    WitnessFolder,
    WitnessRelay,
    parse_witness_address,
    relays_of,
)

INVITES_BYTES_MAX = 65_536
SAME_DISK = (
    "risk: the second place is on the same disk as the vault: a thief who takes the disk has both, "
    "and a broken disk loses both. Another disk, or a USB stick in a drawer, is better"
)


def default_place(kind: str, name: str) -> Path:
    """~/.config/holdfast/KIND/NAME."""
    return Path.home() / ".config" / "holdfast" / kind / name


def path_of(given: str) -> Path:
    return Path(os.path.abspath(Path(given).expanduser()))


def paths_of(given: Sequence[str]) -> tuple[Path, ...]:
    return tuple(dict.fromkeys(map(path_of, given)))


def witnesses_of(given: Sequence[str], invites: Sequence[str] = ()) -> tuple[WitnessAddress, ...]:
    """The addresses that `--witness` or `--new-witness` named, each once; relays with the invites of `--invite`."""
    found = tuple(dict.fromkeys(map(parse_witness_address, given)))
    relays = relays_of(found)
    tokens: dict[str, str] = {}
    for path in invites:
        for line in read_file(path_of(path), INVITES_BYTES_MAX).decode(errors="replace").splitlines():
            host, _, token = line.strip().rpartition(" ")
            if not host and token and len(relays) != 1:
                raise BadInput(
                    f"{path} does not say for which relay its invite is",
                    hint="write lines of HOST and INVITE, or of HOST:PORT and INVITE",
                )
            if not (token.isascii() and token.isprintable()):
                raise BadInput(f"{path} does not hold an invite", hint="`holdfast relay invite` prints one")
            if token:
                tokens[host.strip() or relays[0].host] = token

    def with_invite(one: WitnessRelay) -> WitnessRelay:
        return replace(one, invite=tokens.get(urlsplit(one.url).netloc, tokens.get(one.host, "")))

    return tuple(with_invite(one) if isinstance(one, WitnessRelay) else one for one in found)


def default_witness(name: str) -> WitnessAddress:
    return WitnessFolder(default_place("witness", name))


def second_place(given: str | None, vault: Path, name: str) -> Path:
    """Where the next key is kept: as given, or as a person answers; warns of the risk."""
    if given is not None:
        place = path_of(given)
    elif sys.stdin.isatty():
        proposed = default_place("second", name)
        talk("Where should Holdfast keep the next key? Best on a USB stick: you need it only after a theft.")
        answer = ask_line(f"second place [{proposed}]: ")
        if not answer:  # Ctrl-D
            raise BadInput("no second place was named: nothing was made", hint="press Enter for the one in brackets")
        place = path_of(answer.strip() or str(proposed))
    else:
        raise BadInput("the next key needs a folder", hint="give --second DIR: on another disk, or of another user")
    if disk_of(place) == disk_of(vault):
        talk(SAME_DISK)
    return place


def read_log_file(path: Path) -> LogCopy:
    """The lines of a kel.jsonl, and of receipts.jsonl next to it. Nothing is verified yet."""
    beside = path.parent / RECEIPTS
    return LogCopy(records=_lines(path), receipts=_lines(beside) if beside.is_file() else ())


def read_card_files(paths: Sequence[str]) -> tuple[LogCopy, ...]:
    """The records in the text or codes of a card, on one page or several. Nothing is verified yet."""
    texts = [_card_text(path_of(one)) for one in paths]
    return (LogCopy(records=read_card(*texts), receipts=()),) if texts else ()


def _card_text(path: Path) -> str:
    raw = read_file(path, PICTURE_BYTES_MAX)
    if raw.startswith(PICTURES):
        return scan(path)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise BadSheet(
            f"{path} is neither text nor a picture",
            hint="give the card's text, a scan of it (PDF, PNG or JPEG), or the text of its QR codes",
        ) from None


def _lines(path: Path) -> tuple[bytes, ...]:
    raw = read_file(path, FILE_BYTES_MAX)
    return tuple(line for line in raw[: raw.rfind(b"\n") + 1].split(b"\n") if line)


def read_file(path: Path, bytes_max: int) -> bytes:
    """The contents. Raises BadInput if the file cannot be read or is larger."""
    try:
        with path.open("rb") as file:
            raw = file.read(bytes_max + 1)
    except OSError as error:
        raise BadInput(f"{str(path)!r} cannot be read: {error.strerror}") from error
    if len(raw) > bytes_max:
        raise BadInput(f"{str(path)!r} has more than {bytes_max:,} bytes")
    return raw
