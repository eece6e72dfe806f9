"""holdfast.toml: settings, no secrets. Parsed strictly: an unknown name is rejected.

Found beside the journal, or named by --config. Its notices command is run, so a file that another
user could change is rejected; every user may read it, because it holds no secrets.

    [worker] [journal] [notices] [retention] [scratch]    how a worker behaves (engine_settings.py)
    [adopted]    where the files of an agent are that existed before Holdfast
    [identity]   where the vault, its second place, the witnesses and the arbiter are
    [memory]     how much of its files an agent is given when it starts
    [backup]     how often, how long kept, and what counts as too old
    [instances]  the folder that the agent's instances on several hosts share
    [mail]       how long messages wait for those before them; which relays take over from one that is gone
    [surfaces]   state of the agent that is kept where Holdfast cannot look
    [watch]      who notices that scheduled runs have stopped
    [drills]     how an adopted agent is started and tested in a drill

Paths may begin with `~`; a relative one is counted from the agent's folder.

`write_identity_settings` changes the name, the scope and [identity], and nothing else: all other text stays as
it was written, comments too. The result is parsed again and compared before it replaces the file; if
the two differ the file stays, and the error says what to write.
"""

from __future__ import annotations

import json
import os
import re
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, cast, get_args

import msgspec

from holdfast.core.decoding import convert
from holdfast.core.journal_address import JournalAddress
from holdfast.errors import BadSettings, HoldfastError, ModeTooWide, WrongKind, WrongOwner
from holdfast.host.private_files import write_atomically
from holdfast.layout.engine_settings import Settings

NAME = "holdfast.toml"
FILE_BYTES_MAX = 1 << 20
RENEWALS_PER_LEASE = 3.3

# What the file may say: its section and key, the field of Settings, and the kind of value.
KEYS: dict[tuple[str, str], tuple[str, type]] = {
    ("", "agent"): ("agent", str),
    ("", "request_scope"): ("request_scope", str),
    ("worker", "name"): ("worker_name", str),
    ("worker", "lease_ttl_s"): ("lease_ttl_s", float),
    ("worker", "renew_every_s"): ("renew_every_s", float),
    ("worker", "sweep_every_s"): ("sweep_every_s", float),
    ("worker", "concurrency"): ("concurrency", int),
    ("worker", "claim_batch"): ("claim_batch", int),
    ("worker", "grace_s"): ("grace_s", float),
    ("worker", "check_after_crash"): ("check_after_crash", bool),
    ("journal", "allow_network_fs"): ("allow_network_fs", bool),
    ("journal", "url"): ("journal_url", str),
    ("journal", "durability"): ("journal_durability", str),
    ("notices", "command"): ("notice_command", tuple),
    ("notices", "webhook"): ("notice_webhook", str),
    ("retention", "keep_days"): ("keep_days", float),
    ("retention", "tombstone_days"): ("tombstone_days", float),
    ("scratch", "folder"): ("scratch_folder", str),
    ("scratch", "files_max"): ("scratch_files_max", int),
    ("scratch", "bytes_max"): ("scratch_bytes_max", int),
    ("scratch", "file_bytes_max"): ("scratch_file_bytes_max", int),
    ("scratch", "depth_max"): ("scratch_depth_max", int),
    ("scratch", "name_bytes_max"): ("scratch_name_bytes_max", int),
}
SECTIONS = tuple(dict.fromkeys(section for section, _ in KEYS if section))
TEXT_CHARS_MAX = 2_000


def find_settings(
    journal: JournalAddress, *, config: str = "", overrides: Mapping[str, object] | None = None
) -> Settings:
    """The settings for this journal: the file's, with what the command line says on top."""
    path = Path(config) if config else journal.folder / NAME
    fields = read_fields(path) if config or os.path.lexists(path) else {}
    return make_settings({**fields, **(overrides or {})})


def make_settings(fields: Mapping[str, object]) -> Settings:
    """Settings of these fields; a lease without a renewal of its own is renewed in time."""
    known = dict(fields)
    lease_ttl_s = known.get("lease_ttl_s")
    if "renew_every_s" not in known and isinstance(lease_ttl_s, (int, float)):
        known["renew_every_s"] = max(min(3.0, lease_ttl_s / RENEWALS_PER_LEASE), 0.001)
    return Settings(**cast("dict[str, Any]", known))  # Any: kinds were checked against KEYS


def read_fields(path: Path) -> dict[str, object]:
    """The fields of Settings that the file names. Raises BadSettings, ModeTooWide, WrongOwner."""
    parsed = _parsed(path)
    parse_agent_settings(parsed, where=path)
    fields: dict[str, object] = {}
    for name, value in parsed.items():
        if name in AGENT_SECTIONS:
            continue
        if isinstance(value, dict):
            if name not in SECTIONS:
                raise _unknown(path, f"[{name}]", name, (*SECTIONS, *AGENT_SECTIONS))
            for key, one in cast("dict[str, object]", value).items():
                _take(path, fields, name, key, one)
        else:
            _take(path, fields, "", name, value)
    return fields


def read_agent_settings(path: Path) -> AgentSettings:
    """The sections about the agent. Raises as read_fields does."""
    return parse_agent_settings(_parsed(path), where=path)


def _parsed(path: Path) -> dict[str, Any]:  # Any: TOML, checked by whoever takes it
    try:
        return tomllib.loads(read_checked(path).decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadSettings(f"{path} is not valid TOML: {error}") from error


def _take(path: Path, fields: dict[str, object], section: str, key: str, value: object) -> None:
    where = f"[{section}] {key}" if section else key
    known = KEYS.get((section, key))
    if known is None:
        raise _unknown(path, where, key, [name for part, name in KEYS if part == section])
    field, kind = known
    fields[field] = _value(path, where, value, kind)


def _value(path: Path, where: str, value: object, kind: type) -> object:
    wrong = BadSettings(f"{path}: {where} is {value!r}; it must be {_KINDS[kind]}")
    if kind is tuple:
        words = cast("list[object]", value) if isinstance(value, list) else []
        if not words or not all(_is_text(word) for word in words):
            raise wrong
        return tuple(words)
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind or (kind is str and not _is_text(value)):
        raise wrong
    return value


_KINDS: dict[type, str] = {
    str: f"text of at most {TEXT_CHARS_MAX} characters without control characters",
    float: "a number",
    int: "a whole number",
    bool: "true or false",
    tuple: 'a list of words, for example ["/usr/local/bin/tell", "--channel", "agents"]',
}


def _is_text(value: object) -> bool:
    return (
        isinstance(value, str)
        and len(value) <= TEXT_CHARS_MAX
        and not any(char < " " or char == "\x7f" for char in value)
    )


def _unknown(path: Path, where: str, name: str, names: object) -> BadSettings:
    from difflib import get_close_matches

    known = [str(one) for one in cast("list[str]", names)]
    near = get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}? " if near else f"the settings here are: {', '.join(known)}; "
    return BadSettings(f"{path}: {where} is not a setting", hint=hint + "see `holdfast explain settings`")


def read_checked(path: Path, *, what: str = "settings file") -> bytes:
    """A file that decides which programs are run: no other user can change it. Raises BadSettings, WrongKind,
    ModeTooWide, WrongOwner."""
    try:
        with open(path, "rb", opener=_opener) as file:
            _check(path, os.fstat(file.fileno()))
            return file.read(FILE_BYTES_MAX)
    except FileNotFoundError:
        raise BadSettings(f"there is no {what} {path}") from None
    except HoldfastError:
        raise
    except OSError as error:
        raise BadSettings(f"{path} cannot be read: {error.strerror}") from error


def _opener(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK)


def _check(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise WrongKind(f"{path} is not a file")
    if found.st_uid not in (0, os.geteuid()):
        raise WrongOwner(f"{path} belongs to user {found.st_uid}, who could change which programs Holdfast runs")
    if found.st_mode & 0o022:
        raise ModeTooWide(
            f"other users can change {path} (mode {stat.S_IMODE(found.st_mode):04o})", hint=f"run `chmod go-w {path}`"
        )
    if found.st_size > FILE_BYTES_MAX:
        raise BadSettings(f"{path} has more than {FILE_BYTES_MAX:,} bytes")


AGENT_SECTIONS = ("adopted", "identity", "memory", "instances", "backup", "mail", "surfaces", "watch", "drills")


class AdoptedSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    folder: str = ""  # of an agent that existed before: Holdfast's files are in a folder inside it
    seal_secrets: bool = False  # seal its plain-text secret files into each snapshot, instead of leaving them out


class IdentitySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    vault: str = ""  # empty: the agent has no identity yet
    second: str = ""  # the place of the next key
    witnesses: tuple[str, ...] = ()  # folders of witnesses; relays follow
    arbiter: str = ""  # the folder of the arbiter that grants incarnations; "journal": the journal that hosts share
    lease_s: float = 30.0  # of the agent, at its arbiter; others wait so long for one that died
    watch_s: float = 60.0  # how often a worker looks whether its keys were replaced elsewhere
    signer: str = ""  # the socket of a signer process; empty: the vault is opened here


class MemorySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    tokens: int = 6_000  # of the agent's own files, given to the model on a start


class InstancesSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    folder: str = ""  # that hosts share, for memory updates; empty: the journal carries them, if hosts share it


class BackupSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    hourly: int = 24
    daily: int = 14
    weekly: int = 8
    monthly: int = 12
    stale_after_h: float = 26.0  # a verified backup older than this is a notice
    accept_old_borg: bool = False  # versions before 1.4, with a known hole
    borg: str = ""  # the program; empty: the one beside this Python, else that of the PATH


class MailSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    thread_wait_s: Annotated[float, msgspec.Meta(ge=0, le=3_600)] = 30.0  # for a message that was sent before
    spare_relays: tuple[str, ...] = ()  # addresses; they take the place of relays that are gone
    replace_after_s: Annotated[float, msgspec.Meta(ge=60, le=30 * 86_400)] = 3_600.0  # without an answer


class OwnSurface(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """`[surfaces.own.NAME]`: state of the agent that a project keeps elsewhere."""

    holds: str
    where: str
    owner: str = ""
    protection: str = ""
    domain: str = ""
    evidence: str = ""  # a file: when it was changed is when this surface was last backed up or tested
    rpo_s: Annotated[int, msgspec.Meta(ge=0)] | None = None
    fix: str = ""  # the command that brings new evidence


class SurfacesSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    watch: bool = False  # note which files the Python code of tools writes elsewhere
    own: dict[str, OwnSurface] = {}


class WatchSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    ping: Annotated[str, msgspec.Meta(pattern=r"^(https?://[!-~]+)?$")] = ""  # URL that each scheduled run calls


class DrillSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    start: tuple[str, ...] = ()  # how an agent that Holdfast does not run is started, in its folder
    check: tuple[str, ...] = ()  # ends with 0 where the restored agent works
    app: str = ""  # its own app, `module:attribute` or `file.py:attribute`: the drill `tool-files` calls its tools


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    adopted: AdoptedSettings = msgspec.field(default_factory=AdoptedSettings)
    identity: IdentitySettings = msgspec.field(default_factory=IdentitySettings)
    memory: MemorySettings = msgspec.field(default_factory=MemorySettings)
    instances: InstancesSettings = msgspec.field(default_factory=InstancesSettings)
    backup: BackupSettings = msgspec.field(default_factory=BackupSettings)
    mail: MailSettings = msgspec.field(default_factory=MailSettings)
    surfaces: SurfacesSettings = msgspec.field(default_factory=SurfacesSettings)
    watch: WatchSettings = msgspec.field(default_factory=WatchSettings)
    drills: DrillSettings = msgspec.field(default_factory=DrillSettings)


def parse_agent_settings(parsed: Mapping[str, Any], *, where: Path) -> AgentSettings:
    """The agent's sections of a parsed holdfast.toml. Raises BadSettings."""
    own = {name: parsed[name] for name in AGENT_SECTIONS if name in parsed}
    try:
        return convert(own, AgentSettings)
    except msgspec.ValidationError as error:
        raise _explained(str(error), where) from None


_FAULT = re.compile(r"(?P<what>.*?)(?: - at `\$\.?(?P<at>[^`]*)`)?")
_NAMES = {
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
}


def _explained(error: str, path: Path) -> BadSettings:
    """What msgspec found, with the table as it is written in the file."""
    found = _FAULT.fullmatch(error)
    what, at = (found["what"], found["at"] or "") if found else (error, "")
    table = at.replace("[...]", ".NAME")
    if unknown := re.fullmatch(r"Object contains unknown field `(.*)`", what):
        return _unknown(path, f"[{table}] {unknown[1]}", unknown[1], _settings_at(at))
    if missing := re.fullmatch(r"Object missing required field `(.*)`", what):
        return BadSettings(f"{path}: [{table}] lacks {missing[1]}", hint="see `holdfast explain settings`")
    if kinds := re.fullmatch(r"Expected `([^`]*)`, got `([^`]*)`", what):
        wanted, got = (" or ".join(_NAMES.get(one, one) for one in kind.split(" | ")) for kind in kinds.groups())
        section, _, name = table.rpartition(".")
        shown = f"[{section}] {name}" if section else f"[{name}]"
        return BadSettings(f"{path}: {shown} is {got}; it must be {wanted}", hint="see `holdfast explain settings`")
    return BadSettings(f"{path}: [{table}] {what}", hint="see `holdfast explain settings`")


def _settings_at(at: str) -> list[str]:
    """The settings of a table, by its path in a message of msgspec."""
    kind: Any = AgentSettings  # Any: a type of msgspec's fields
    for part in at.replace("[...]", "[]").split("."):
        every = {one.encode_name: one.type for one in msgspec.structs.fields(kind)}
        kind = get_args(every[part.removesuffix("[]")])[1] if part.endswith("[]") else every[part]
    return [one.encode_name for one in msgspec.structs.fields(kind)]


_SECTION = re.compile(r"^\[identity\][^\n]*\n(?:(?!\[)[^\n]*(?:\n|\Z))*", re.MULTILINE)
_AGENT = re.compile(r"^agent\s*=[^\n]*(?:\n|\Z)", re.MULTILINE)


def write_identity_settings(path: Path, *, name: str, identity: IdentitySettings, scope: str = "") -> None:
    """Set `agent` and [identity]; the file is made where there is none. Safe to repeat.
    `scope` becomes the request scope of a file that names neither an agent nor a scope.
    Raises BadSettings where the file names another agent, or cannot be changed in this way."""
    old = ""
    if os.path.lexists(path):
        fields = read_fields(path)
        known = fields.get("agent", name)
        if known != name:
            raise BadSettings(f"{path} belongs to the agent {known!r}, not {name!r}")
        if read_agent_settings(path).identity == identity and "agent" in fields:
            return
        old = path.read_text()
        scope = "" if fields.keys() & {"agent", "request_scope"} else scope
    new = edited(old, name=name, identity=identity, scope=scope)
    if new is None:
        lines = "".join(_lines(identity))
        raise BadSettings(
            f"Holdfast cannot change `agent` and `identity` in {path} without changing other settings",
            hint=f"remove every line about `agent` and `identity` from it. Then begin it with:\n"
            f"{_top(name, scope)}and put these lines at its end:\n{lines}",
        )
    write_atomically(path, new.encode())
    if read_agent_settings(path).identity != identity:
        raise BadSettings(f"{path} does not have the [identity] settings that Holdfast just wrote to it")


def edited(old: str, *, name: str, identity: IdentitySettings, scope: str = "") -> str | None:
    """The text with these settings; None where that would change anything else."""
    rest = _AGENT.sub("", _SECTION.sub("", old), count=1).strip("\n")
    new = f"{_top(name, scope)}\n" + (f"{rest}\n\n" if rest else "") + "".join(_lines(identity))
    wanted = {**tomllib.loads(old), "agent": name, "identity": msgspec.to_builtins(identity)}
    wanted |= {"request_scope": scope} if scope else {}
    try:
        found: dict[str, Any] = tomllib.loads(new)
    except tomllib.TOMLDecodeError:
        return None
    return new if _plain(found) == _plain(wanted) else None


_JOURNAL = re.compile(r"^\[journal\][^\n]*(?:\n|\Z)((?:(?!\[)[^\n]*(?:\n|\Z))*)", re.MULTILINE)
_JOURNAL_URL = re.compile(r"^[ \t]*url\s*=[^\n]*(?:\n|\Z)", re.MULTILINE)


def write_journal_url(path: Path, url: str) -> None:
    """Set `url` in [journal], or remove it where it is empty; the file is made where there is none. Safe to repeat.
    Raises BadSettings where the file cannot be changed in this way."""
    old = path.read_text() if os.path.lexists(path) else ""
    if str(read_fields(path).get("journal_url", "") if old else "") == url:
        return
    line = f"url = {_text(url)}\n" if url else ""
    section = _JOURNAL.search(old)
    if section is None:
        new = (f"{old.rstrip()}\n\n" if old.strip() else "") + f"[journal]\n{line}"
    else:
        start, end = section.span(1)
        above = old[:start] if old[:start].endswith("\n") else f"{old[:start]}\n"
        new = f"{above}{line}{_JOURNAL_URL.sub('', old[start:end], count=1)}{old[end:]}"
    wanted = tomllib.loads(old)
    rest = {key: value for key, value in wanted.get("journal", {}).items() if key != "url"}
    wanted["journal"] = {**rest, **({"url": url} if url else {})}
    try:
        found: dict[str, Any] = tomllib.loads(new)
    except tomllib.TOMLDecodeError:
        found = {}
    if _plain(found) != _plain(wanted):
        raise BadSettings(
            f"Holdfast cannot change `url` of [journal] in {path} without changing other settings",
            hint=f"write it yourself:\n[journal]\n{line}" if url else "remove `url` from [journal] yourself",
        )
    write_atomically(path, new.encode())


def _top(name: str, scope: str) -> str:
    return f"agent = {_text(name)}\n" + (f"request_scope = {_text(scope)}\n" if scope else "")


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value, default=str))


def _lines(identity: IdentitySettings) -> list[str]:
    fields = msgspec.to_builtins(identity)
    return ["[identity]\n", *(f"{key} = {_text(value)}\n" for key, value in fields.items())]


def _text(value: object) -> str:
    """A value as TOML has it, a list on one line; JSON escapes what TOML does, but for DEL."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
