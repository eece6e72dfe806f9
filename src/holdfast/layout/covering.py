"""Which files of an agent's folder a backup covers, decided by name alone.

What is left out is left out for one of five reasons, and each is said: it belongs to this host
alone; it is a secret in the clear, which no backup may hold; it is made again from something that
is covered; it is a cache; it cannot be kept (covered.py). Everything else is covered: a file that
no rule names is in the backup, not lost.

The known parts only tell a person what was found: nothing is read differently because of its name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import translate

FILE_BYTES_MAX = 4 << 30
ENTRIES_MAX = 1_000_000


class CoveredKind(StrEnum):
    """What a covered entry is."""

    FILE = "file"
    FOLDER = "folder"
    LINK = "link"  # kept as a link, never followed
    DATABASE = "database"  # SQLite: taken by its backup interface, never by copying the file


class Reason(StrEnum):
    """Why an entry is left out."""

    HOST = "host"
    SECRET = "secret"
    MADE_AGAIN = "made again"
    CACHE = "cache"
    UNKEEPABLE = "cannot be kept"
    LARGE = "large"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True, kw_only=True)
class CoveringRules:
    """What is left out beside the names below.
    `apart` holds absolute paths: the vault, repositories and witnesses, should they be inside. `own` is where
    Holdfast's own files are: in the folder itself, or in one inside it."""

    apart: tuple[str, ...] = ()
    own: str = ""
    file_bytes_max: int = FILE_BYTES_MAX
    entries_max: int = ENTRIES_MAX
    seal: bool = False  # tell each file in a folder of keys: it is to be sealed


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    reason: Reason
    text: str
    sealable: bool = False  # a secret of the agent's own, which `seal_secrets` seals into snapshots


SEALED = "sealed-secrets.age"  # in snapshots alone
SEALED_NOTE = f"sealed into {SEALED}"

# Of Holdfast's own folder, by whole path.
_OWN: dict[str, LeftOut] = {
    "instance": LeftOut(reason=Reason.HOST, text="this host's own keys and lease"),
    "keys.json": LeftOut(reason=Reason.SECRET, text="keys of the journal: in the vault"),
    "scratch": LeftOut(reason=Reason.MADE_AGAIN, text="made again from the journal"),
    SEALED: LeftOut(reason=Reason.MADE_AGAIN, text="made again by each backup"),
}
_CUT_OFF = "what a write that was cut off left behind"
_NO_LOSS = frozenset((_CUT_OFF, SEALED_NOTE, *(one.text for one in _OWN.values())))


def _any_of(patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(map(translate, patterns.split())))


# By name, in any folder.
_SECRET_NAMES = _any_of("""
    .env .env.* *.env *.pem *.key *.p12 *.pfx *.jks *.keystore *.kdbx id_rsa id_dsa id_ecdsa id_ecdsa_sk id_ed25519
    id_ed25519_sk .netrc .pgpass .git-credentials .npmrc .pypirc .credentials.json credentials.json
    auth-profiles.json secrets.json secrets.yaml secrets.yml secrets.toml service-account*.json
""")
# Settings that an agent needs and that may hold keys: sealed if anything is, else covered with a remark.
KEYS_IN_SETTINGS = LeftOut(reason=Reason.SECRET, text="settings that may hold keys in the clear", sealable=True)
_SETTINGS_WITH_KEYS = ("openclaw.json",)
_SECRET_FOLDERS = (".ssh", ".gnupg", ".aws")
_NOT_SECRET = _any_of("*.example *.sample *.template *.pub *.dist")
_CACHE_FOLDERS_TEXT = """
    node_modules __pycache__ .venv venv .cache .pytest_cache .mypy_cache .ruff_cache .tox .nox .gradle .next .turbo
    .parcel-cache
"""
_CACHE_FOLDERS = tuple(_CACHE_FOLDERS_TEXT.split())
_SQLITE_BESIDE = ("-wal", "-shm", "-journal")
_PRIVATE_KEY = (b"-----BEGIN ", b"PRIVATE KEY")
SQLITE_HEAD = b"SQLite format 3\0"
CACHE_TAG = b"Signature: 8a477f597d28d172789f06886806bc55"
HEAD_BYTES = 64
VAULT_NAME = "slots.json"  # a folder that holds it is a vault


def judge_name(path: str, *, folder: bool, own: str = "") -> LeftOut | None:
    """Why the entry with this relative path is left out; None where it is covered."""
    if not own or path.startswith(f"{own}/"):
        ours = _OWN.get(path.removeprefix(f"{own}/"))
        if ours is not None:
            return ours
    name = path.rpartition("/")[2]
    if folder:
        if name in _CACHE_FOLDERS:
            return LeftOut(reason=Reason.CACHE, text="a cache")
        if name in _SECRET_FOLDERS:
            return LeftOut(reason=Reason.SECRET, text="a folder of keys", sealable=True)
        return None
    if name.startswith(".") and name.endswith(".new") and name.count(".") >= 3:
        return LeftOut(reason=Reason.MADE_AGAIN, text=_CUT_OFF)
    low = name.lower()
    if _SECRET_NAMES.match(low) and not _NOT_SECRET.match(low):
        return LeftOut(reason=Reason.SECRET, text="an unencrypted secret, by its name", sealable=True)
    return None


def is_no_loss(text: str) -> bool:
    """Whether leaving this out loses nothing: Holdfast's own files of this host, or made again."""
    return text.startswith("taken with ") or text in _NO_LOSS


def judge_head(head: bytes) -> LeftOut | None:
    """Why a file that begins so is left out: a private key under a harmless name."""
    if head.startswith(_PRIVATE_KEY[0]) and _PRIVATE_KEY[1] in head:
        return LeftOut(reason=Reason.SECRET, text="a private key in the clear", sealable=True)
    return None


def may_hold_keys(path: str) -> bool:
    """Whether the file is a program's settings in which people write their keys."""
    return path.rpartition("/")[2] in _SETTINGS_WITH_KEYS


def find_database(name: str) -> str | None:
    """The database that the file of this name would belong to: `a.db-wal` to `a.db`."""
    if not name.endswith(_SQLITE_BESIDE):
        return None
    return next((name.removesuffix(end) for end in _SQLITE_BESIDE if name.endswith(end)), None)


# Of the folder itself, by name; the way agents of several frameworks are laid out.
FILES: Mapping[str, str] = {
    "SOUL.md": "who the agent is",
    "IDENTITY.md": "its name and nature",
    "AGENTS.md": "instructions",
    "CLAUDE.md": "instructions",
    "USER.md": "whom it works for",
    "TOOLS.md": "notes on its tools",
    "MEMORY.md": "long-term memory",
    "HEARTBEAT.md": "what it looks at on each beat",
    "BOOTSTRAP.md": "its first start",
    "TODO.md": "what is to be done",
    "handoff.md": "a hand-off of its own",
    "identity.json": "an identity of its own",
    "package.json": "a Node project",
    "Cargo.toml": "a Rust project",
    "pyproject.toml": "a Python project",
    "go.mod": "a Go project",
}
FOLDERS: Mapping[str, str] = {
    "memory": "daily log",
    "sessions": "sessions",
    "skills": "skills",
    ".claude": "settings and sessions of Claude Code",
    ".git": "history of git",
    ".openclaw": "settings of OpenClaw",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One known thing in the folder."""

    path: str
    what: str
    files: int = 1


WORKSPACE = "workspace/"  # OpenClaw keeps an agent's files in this folder of its own


def workspace_in(paths: Iterable[str]) -> str:
    """Where in the folder the agent's files are: "" for the folder itself, WORKSPACE where only that has known ones."""
    known = {path for path in paths if path.removeprefix(WORKSPACE) in FILES}
    return WORKSPACE if known and all(path.startswith(WORKSPACE) for path in known) else ""


def known_parts(paths: Iterable[tuple[str, bool]]) -> list[Part]:
    """The known parts among these relative paths (and whether each is a folder), by path."""
    found: dict[str, Part] = {}
    every = list(paths)
    inner = workspace_in(path for path, folder in every if not folder)
    for whole, folder in every:
        if inner and not whole.startswith(inner):
            continue
        path = whole.removeprefix(inner)
        top, _, below = path.partition("/")
        if not below and not folder and path in FILES:
            found[whole] = Part(path=whole, what=FILES[path])
        elif top in FOLDERS and (below or folder):
            known = found.get(f"{inner}{top}/", Part(path=f"{inner}{top}/", what=FOLDERS[top], files=0))
            count = known.files + (0 if folder else 1)
            found[known.path] = Part(path=known.path, what=known.what, files=count)
    return [found[path] for path in sorted(found)]
