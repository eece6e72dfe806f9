"""The agent's lease, shared by the processes of one folder: one keeps it, all use it.

The keeper is the process that holds the lock of `instance/keeper.lock`. It asks the arbiter, and
writes the answer to `instance/lease.json`; the others read that file. When the keeper dies, the
kernel frees the lock, and the next keeper continues with the same key and the same counter: they
are one instance. What a process may rely on is `until_boot_ms`, a number on the boot clock that it
compares with before every step and every first byte; no message is needed when it is over.

A thread asks the arbiter, so that a task that keeps the event loop busy does not lose the lease.
If the whole process is stopped, nothing is lost either: the clock runs on.

The file is written after the arbiter has granted and the journal was raised. A crash before that
leaves an old file, which expires; a file of another boot is ignored.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from holdfast.core.clock import Clock, Entropy
from holdfast.core.decoding import decode_json
from holdfast.core.journal_address import JournalAddress
from holdfast.core.ports import KeyRing
from holdfast.errors import BadSettings, HoldfastError
from holdfast.host.private_files import ensure_private_folder, open_private, read_private, write_atomically
from holdfast.identity.lease.arbiter import FolderArbiter
from holdfast.identity.lease.arbiter_state import Contender
from holdfast.identity.lease.enrolment import own_role
from holdfast.identity.lease.instance import WaitReason
from holdfast.identity.lease.lease_holder import InstanceFile, LeaseHeld, LeaseHolder, LeaseNotHeld
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.records.encodings import Digest, digest_of
from holdfast.identity.speaker.open_speaker import open_speaker
from holdfast.identity.speaker.speaker import Speaker
from holdfast.identity.statements.statements import parse_head
from holdfast.identity.witness.open_witnesses import ask_witnesses, open_witnesses
from holdfast.journal.bind import journal_at
from holdfast.layout.agent_home import AgentHome

FORMAT = 1
LEASE = "lease.json"
LOCK = "keeper.lock"
FILE_BYTES_MAX = 16 * 1024
LEASE_S_MIN, LEASE_S_MAX = 0.5, 3600.0
LOOKS_A_LEASE = 12  # of processes that wait for it or do not keep it
NO_STATE = digest_of(b"holdfast/state/1\0")


class Shown(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`lease.json`: what the keeper last heard."""

    format: int
    boot: str
    state: str  # "held", or why not
    text: str = ""
    inst: str = ""
    e: int = 0
    until_boot_ms: int = 0
    pid: int = 0


class AgentLease:
    """The lease as this process sees it (runtime.session.lease.Right). Start it, wait for it, stop it."""

    def __init__(
        self, home: AgentHome, journal: JournalAddress, *, clock: Clock, entropy: Entropy, keys: Callable[[], KeyRing]
    ) -> None:
        arbiter, lease_s = home.arbiter, home.settings.identity.lease_s
        if arbiter is None:
            raise BadSettings(f"{home.settings_file} has no setting `arbiter` under [identity]")
        if not LEASE_S_MIN <= lease_s <= LEASE_S_MAX:
            raise BadSettings(f"lease_s must be between {LEASE_S_MIN:g} and {LEASE_S_MAX:g}")
        ensure_private_folder(home.instance)
        self._home = home
        self._journal = journal
        self._admin = journal_at(journal, instance=home.instance)
        self._clock = clock
        self._entropy = entropy
        self._keys = keys
        self._arbiter_folder = arbiter
        self._life_ms = int(lease_s * 1000)
        self._lock_fd = -1
        self._holder: LeaseHolder | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._bound = 0  # the incarnation under which this process has the journal open
        self.until_boot_ms = 0
        self.e = 0
        self.look_every_s = lease_s / LOOKS_A_LEASE
        self.shown = Shown(format=FORMAT, boot=clock.boot_id, state=WaitReason.TROUBLE.value)
        self.contender: Contender | None = None

    @property
    def life_s(self) -> float:
        return self._life_ms / 1000

    @property
    def held(self) -> bool:
        return self._clock.boot_ms() < self.until_boot_ms

    @property
    def keeps(self) -> bool:
        """Whether this process is the keeper."""
        return self._lock_fd >= 0

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="holdfast lease", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop asking. The lease expires, or another process of this folder keeps it."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def bind(self, incarnation: int) -> None:
        """From here on this process acts under this incarnation and no other."""
        self._bound = incarnation
        if incarnation != self.e:
            self.until_boot_ms = 0

    def _run(self) -> None:
        while not self._stop.is_set():
            self._stop.wait(self._round())

    def _round(self) -> float:
        """Keep it, or look at what the keeper wrote; the seconds until the next time."""
        try:
            if self._lock_fd < 0:
                self._try_lock()
            if self._lock_fd < 0:
                self._look()
                return self.look_every_s
            found = self._get_keeper().turn()
        except (HoldfastError, OSError) as error:
            found = LeaseNotHeld(why=WaitReason.TROUBLE, text=str(error))
        self._take(found)
        with contextlib.suppress(HoldfastError, OSError):
            write_atomically(self._home.instance / LEASE, msgspec.json.encode(self.shown) + b"\n")
        return found.renew_in_ms / 1000 if isinstance(found, LeaseHeld) else self.life_s / 4

    def _take(self, found: LeaseHeld | LeaseNotHeld) -> None:
        instance = None if self._holder is None else self._holder.instance
        inst = "" if instance is None else instance.key
        if isinstance(found, LeaseHeld):
            self._may_act(found.e, found.until_boot_ms)
            self.contender = found.contender or self.contender
            state, text = "held", ""
        else:
            state, text = found.why.value, found.text
            if found.why is not WaitReason.TROUBLE:
                self.until_boot_ms = 0  # another instance may get it from now on
        self.shown = Shown(
            format=FORMAT,
            boot=self._clock.boot_id,
            state=state,
            text=text,
            inst=inst,
            e=self.e,
            until_boot_ms=self.until_boot_ms,
            pid=os.getpid(),
        )

    def _may_act(self, e: int, until_boot_ms: int) -> None:
        if self._bound and e != self._bound:
            self.until_boot_ms = 0  # the journal is open under another incarnation: open it again
            return
        self.e = e
        self.until_boot_ms = until_boot_ms

    def _look(self) -> None:
        shown = read_lease(self._home.instance)
        if shown is None or shown.boot != self._clock.boot_id:
            return
        self.shown = shown
        self._may_act(shown.e, shown.until_boot_ms)

    def _try_lock(self) -> None:
        fd = open_private(self._home.instance / LOCK, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return
        self._lock_fd = fd

    def _get_keeper(self) -> LeaseHolder:
        if self._holder is None:
            speaker = open_speaker(self._home, self._clock)
            self._holder = LeaseHolder(
                file=InstanceFile(self._home.instance, id=speaker.id, clock=self._clock, entropy=self._entropy),
                speaker=speaker,
                arbiter=FolderArbiter(self._arbiter_folder, clock=self._clock, life_ms=self._life_ms),
                clock=self._clock,
                incarnation=lambda: self._bound or self._admin.incarnation(),
                raise_incarnation=self._raise,
                state_root=self._state_root,
                reread=lambda: self._reread(speaker),
                role=lambda: own_role(self._home.folder, self._home.instance, clock=self._clock, port=Sodium()),
            )
        return self._holder

    def _raise(self, e: int) -> None:
        if self._admin.exists():
            keys, wait_s = self._keys(), min(self.life_s / 4, 5.0)
            asyncio.run(self._admin.raise_incarnation(to=e, keys=keys, clock=self._clock, wait_s=wait_s))

    def _reread(self, speaker: Speaker) -> KeyLog:
        """The log as the witnesses know it, where they can be reached; it may be ahead of ours."""
        own, port = speaker.log(), Sodium()
        found = open_witnesses(self._home.witnesses, port=port).by_key
        if not found:
            return own
        log, _silent = asyncio.run(ask_witnesses(own, own.id, found, port=port))
        return log or own

    def _state_root(self) -> Digest:
        """The manifest of the newest snapshot: what this state can be compared with later."""
        try:
            lines = self._home.heads_file.read_bytes().splitlines()
            return parse_head(lines[-1]).record.manifest
        except (OSError, IndexError, HoldfastError):
            return NO_STATE


def read_lease(instance: Path) -> Shown | None:
    """What the keeper of this folder last wrote; None if there is nothing to rely on."""
    try:
        raw = read_private(instance / LEASE, FILE_BYTES_MAX)
    except FileNotFoundError:
        return None
    try:
        shown = decode_json(raw, Shown)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return shown if shown.format == FORMAT else None
