"""What a commit survives: where else it is when it returns, and which restore it came after."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import msgspec


class Life(NamedTuple):
    """Of a journal: a restore begins a new one, without what came after its copy."""

    incarnation: int
    restored_ms: int  # 0: it was never restored


class Kept(StrEnum):
    """Where else a commit is when it returns."""

    ONE_DISK = "one disk"  # nowhere
    STANDBY = "standby"  # on a synchronous standby
    NO_STANDBY = "no standby"  # nowhere: the server is to have none
    GONE = "standby gone"  # no commit returns
    READ_ONLY = "read only"  # nothing can be committed
    UNKNOWN = "unknown"  # counts as none
    PROVIDER = "provider"  # a service says so; not proven


class Durability(msgspec.Struct, frozen=True, kw_only=True):
    """What a commit survives, as far as it can be seen now."""

    kept: Kept
    text: str
    hint: str = ""
    since_ms: int = 0  # of the first look of any process that found it so


IN_A_FILE = Durability(
    kept=Kept.ONE_DISK, text="commits are on one disk: they survive a crash and power loss, not the loss of the disk"
)
