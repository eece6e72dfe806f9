"""Where a place is, as a person writes it: a folder, a repository on another host, or a path in a cloud.

    /mnt/nas/holdfast                a folder; this machine writes into it
    ssh://user@host:22/path          a repository that the engine reaches by ssh
    user@host:path                   the same, as scp writes it
    rclone:REMOTE:path               a copy that rclone keeps, at a remote that rclone knows

Rejected is what the engine or ssh would misread: braces (placeholders), `::` (an archive), a leading
dash (an option), anything that is not printable.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from holdfast.errors import BadPlace

ADDRESS_CHARS_MAX = 1_000
NAME_CHARS_MAX = 40
PORT_MAX = 65_535
_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")
_HOST = r"(?P<host>[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])"
_USER = r"(?:(?P<user>[A-Za-z0-9_][A-Za-z0-9._-]*)@)?"
_SSH = re.compile(rf"ssh://{_USER}{_HOST}(?::(?P<port>[0-9]{{1,5}}))?(?P<path>/.+)")
_RCLONE = re.compile(r"rclone:(?P<remote>[A-Za-z0-9_][A-Za-z0-9_.-]*):(?P<path>[^:-][^:]*)")
_SCP = re.compile(rf"{_USER}{_HOST}:(?P<path>[^:].*)")


class PlaceKind(StrEnum):
    FOLDER = "folder"
    SSH = "ssh"
    RCLONE = "rclone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    kind: PlaceKind
    text: str
    host: str = ""


def check_place_name(name: str) -> str:
    if len(name) > NAME_CHARS_MAX or not _NAME.fullmatch(name):
        raise BadPlace(
            f"{name[:60]!r} is not a valid name for a place",
            hint=f"use at most {NAME_CHARS_MAX} lower-case letters, digits and dashes, for example nas or second-host",
        )
    return name


def parse_address(text: str) -> Address:
    """Raises BadPlace."""
    _check_characters(text)
    if text.startswith("ssh://"):
        return _ssh(text, _SSH.fullmatch(text))
    if text.startswith("rclone:"):
        return _rclone(text, _RCLONE.fullmatch(text))
    scheme, found, path = text.partition("://")
    if found:
        folder = f"give the folder itself: {path}" if scheme == "file" else ""
        raise BadPlace(
            f"{text[:80]!r}: Holdfast has no places at {scheme[:20]}:// addresses",
            hint=folder
            or "give a folder that is mounted here (/mnt/nas), a host with Borg (ssh://user@host/path), or a cloud "
            "(rclone:REMOTE:PATH)",
        )
    if text.startswith("/"):
        return Address(kind=PlaceKind.FOLDER, text=text.rstrip("/") or "/")
    scp = _SCP.fullmatch(text)
    if scp is not None:
        return _from_scp(scp)
    raise BadPlace(
        f"{text[:80]!r} is not the address of a place",
        hint="give the whole path of a folder (/mnt/nas), ssh://user@host/path, user@host:path, or rclone:REMOTE:PATH",
    )


def _check_characters(text: str) -> None:
    if not 0 < len(text) <= ADDRESS_CHARS_MAX or not text.isprintable():
        raise BadPlace(f"the address of a place must be printable text of at most {ADDRESS_CHARS_MAX} characters")
    for odd in ("::", "{", "}"):
        if odd in text:
            raise BadPlace(
                f"the address of a place may not contain {odd!r}: the backup program gives it a special meaning"
            )


def _ssh(text: str, match: re.Match[str] | None) -> Address:
    if match is None or (match["port"] and not 0 < int(match["port"]) <= PORT_MAX):
        raise BadPlace(
            f"{text[:80]!r} is not a valid ssh address",
            hint="use the form ssh://user@host:22/path, with a port from 1 to 65535",
        )
    return Address(kind=PlaceKind.SSH, text=text.rstrip("/"), host=match["host"])


def _rclone(text: str, match: re.Match[str] | None) -> Address:
    if match is None:
        raise BadPlace(
            f"{text[:80]!r} is not a valid rclone address",
            hint="use the form rclone:REMOTE:PATH; `rclone listremotes` shows the remotes that rclone knows",
        )
    return Address(kind=PlaceKind.RCLONE, text=text.rstrip("/"), host=f"rclone remote {match['remote']}")


def _from_scp(match: re.Match[str]) -> Address:
    # A relative path is counted from the far home: the engine writes that as /./
    path = match["path"] if match["path"].startswith("/") else f"/./{match['path']}"
    user = f"{match['user']}@" if match["user"] else ""
    return Address(kind=PlaceKind.SSH, text=f"ssh://{user}{match['host']}{path}".rstrip("/"), host=match["host"])
