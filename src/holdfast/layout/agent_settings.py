"""The parts of holdfast.toml that are about the agent rather than about a worker.

    [adopted]    where the files of an agent lie that was there before Holdfast
    [identity]   where the vault, its second place, the witnesses and the arbiter lie
    [memory]     how much of its files an agent is given when it starts
    [backup]     how often, how long kept, and what counts as too old

Paths may begin with `~`; a relative one is counted from the agent's folder. None of it is secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from holdfast.errors import BadSettings

SECTIONS = ("adopted", "identity", "memory", "backup")


class AdoptedSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    folder: str = ""  # of an agent that was there before: Holdfast's files lie in one inside it


class IdentitySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    vault: str = ""  # empty: the agent has no identity yet
    second: str = ""  # the place of the next key
    witnesses: tuple[str, ...] = ()  # folders of witnesses; relays follow
    arbiter: str = ""  # the folder of the arbiter that grants incarnations
    lease_s: float = 30.0  # of the agent, at its arbiter; others wait so long for one that is gone
    watch_s: float = 60.0  # how often a worker looks whether its keys were replaced elsewhere
    signer: str = ""  # the socket of a signer process; empty: the vault is opened here


class MemorySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    tokens: int = 6_000  # of the agent's own files, given to the model on a start


class BackupSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    hourly: int = 24
    daily: int = 14
    weekly: int = 8
    monthly: int = 12
    stale_after_h: float = 26.0  # a verified backup older than this is a notice
    accept_old_borg: bool = False  # versions before 1.4, with a known hole
    borg: str = ""  # the program; empty: the one beside this Python, else that of the PATH


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    adopted: AdoptedSettings = msgspec.field(default_factory=AdoptedSettings)
    identity: IdentitySettings = msgspec.field(default_factory=IdentitySettings)
    memory: MemorySettings = msgspec.field(default_factory=MemorySettings)
    backup: BackupSettings = msgspec.field(default_factory=BackupSettings)


def parse_agent_settings(parsed: Mapping[str, Any], *, where: Path) -> AgentSettings:
    """Of a parsed holdfast.toml; its other sections are settings_file.py's. Raises BadSettings."""
    own = {name: parsed[name] for name in SECTIONS if name in parsed}
    try:
        return msgspec.convert(own, AgentSettings)
    except msgspec.ValidationError as error:
        raise BadSettings(f"{where}: {error}", hint="see docs/reference/settings.md") from None
