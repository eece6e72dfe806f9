"""Settings of the runtime, with the reason for each number."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.errors import BadSettings
from holdfast.host.manifest import NAME_BYTES_MAX
from holdfast.host.tree import Limits

NAME_CHARS_MAX = 200
_SCRATCH_MAX = {
    "scratch_files_max": 100_000,
    "scratch_bytes_max": 1 << 40,
    "scratch_file_bytes_max": 1 << 36,  # its list of chunks must fit into a blob
    "scratch_depth_max": 100,
    "scratch_name_bytes_max": NAME_BYTES_MAX,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a worker behaves. The defaults suit production on one machine."""

    lease_ttl_s: float = 10.0  # others wait this long for a worker they cannot prove dead
    renew_every_s: float = 3.0  # three tries within a lease
    sweep_every_s: float = 0.25  # how soon an orphan of a dead process on this host is found
    concurrency: int = 200  # tasks running at the same time in one process
    claim_batch: int = 64  # tasks claimed in one commit
    grace_s: float = 20.0  # for calls under way when the worker is asked to stop
    keep_days: float = 30.0  # payloads of ended tasks
    tombstone_days: float = 400.0  # ids of erased tasks; longer than any key window
    pace: float = 1.0  # factor for waits between attempts and for quiet; tests use less
    notice_command: tuple[str, ...] = ()  # gets each notice as JSON on standard input
    notice_webhook: str = ""
    worker_name: str = ""
    agent: str = "default"
    request_scope: str = ""  # two scopes give one request id two tasks; empty: the name of the agent
    check_after_crash: bool = True  # a full check in the background after an unclean stop
    allow_network_fs: bool = False
    journal_url: str = ""  # of a journal on a server; empty: the file journal.db
    journal_durability: str = ""  # "provider": a service replicates below the database; a claim, not proven
    scratch_folder: str = ""  # beside the journal where it is empty
    scratch_files_max: int = 10_000  # files and folders; each checkpoint looks at every one
    scratch_bytes_max: int = 4 << 30
    scratch_file_bytes_max: int = 2 << 30
    scratch_depth_max: int = 32
    scratch_name_bytes_max: int = 255  # what file systems hold

    @property
    def scope(self) -> str:
        """What enters the task id of a request id. A journal that has tasks must keep it."""
        return self.request_scope or self.agent

    @property
    def scratch_limits(self) -> Limits:
        return Limits(
            files=self.scratch_files_max,
            bytes=self.scratch_bytes_max,
            file_bytes=self.scratch_file_bytes_max,
            depth=self.scratch_depth_max,
            name_bytes=self.scratch_name_bytes_max,
        )

    def __post_init__(self) -> None:
        positive = ("lease_ttl_s", "renew_every_s", "sweep_every_s", "pace")
        for name in positive:
            if not 0.001 <= getattr(self, name) <= 86_400:
                raise BadSettings(f"{name} must be between 0.001 and 86400")
        if self.journal_durability not in ("", "provider"):
            raise BadSettings('[journal] durability must be "provider", or left out')
        for name in ("concurrency", "claim_batch"):
            if not 1 <= getattr(self, name) <= 100_000:
                raise BadSettings(f"{name} must be between 1 and 100000")
        for name in ("grace_s", "keep_days", "tombstone_days"):
            if not 0 <= getattr(self, name) <= 100_000:
                raise BadSettings(f"{name} must be between 0 and 100000")
        for name, highest in _SCRATCH_MAX.items():
            if not 1 <= getattr(self, name) <= highest:
                raise BadSettings(f"{name} must be between 1 and {highest}")
        if self.scratch_folder and not self.scratch_folder.startswith("/"):
            raise BadSettings("scratch_folder must be an absolute path")
        for name in ("worker_name", "agent", "request_scope"):
            if len(getattr(self, name)) > NAME_CHARS_MAX:
                raise BadSettings(f"{name} must have at most {NAME_CHARS_MAX} characters")
        if self.renew_every_s >= self.lease_ttl_s:
            raise BadSettings("renew_every_s must be shorter than lease_ttl_s")


def request_scopes(own: Settings, *, beside: Settings) -> tuple[str, ...]:
    """The scope of new task ids, then the scopes under which the journal may have the same request already.

    Commands take their scope from the settings file beside the journal; a program may give settings that name no scope.
    Both must then mean the same task. So settings without a scope of their own get the one of the file, and every
    scope that a program or command without one ever had here is looked for too. A scope that only its program names
    is kept apart: that is what a scope is for."""
    usual = (beside.scope, beside.agent, Settings().agent)
    named = own.request_scope or (own.agent if own.agent not in usual else "")
    scope = named or beside.scope
    return tuple(dict.fromkeys((scope, *(usual if scope in usual else ()))))
