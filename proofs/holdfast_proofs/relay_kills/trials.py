"""`trials.py FOLDER POINTS FAULT STORE|AGENT...`: started by the command of the package with the crash shim loaded.

Each trial is a fork: the prepared folder is put back at its path, the child is armed and serves or acts; then a child
without the shim's arms takes over, and the judges look. Ways to be cut short: SIGKILL before a call, a disk that is
full from a call on until it has room again, a sync that fails, a clock that is 24 hours off.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.host.log import Log
from holdfast.identity.witness.witness_folder import witness_signer
from holdfast.layout.witness_address import WitnessRelay
from holdfast.relay.server.app import Relay
from holdfast.relay.server.serve import RunningRelay, _serve
from holdfast.relay.server.settings import RelaySettings
from holdfast.relay.server.store import Store
from holdfast_proofs.identity_kills.trials import chosen
from holdfast_proofs.relay_kills.agents import NAMES, sweep_agents
from holdfast_proofs.relay_kills.faults import plant
from holdfast_proofs.relay_kills.store import DAY_S, PARTS, Figures, Lost, Talk, check_file, give_invite
from holdfast_proofs.shim import Mode, Trace, arm
from holdfast_proofs.support.relay_agents import PORT

CALLS_MAX = 4_000
TRIES, AGAIN_S = 20, 0.25

Arm = Callable[[], None]


def _nothing() -> None:
    pass


class StoreTrials:
    """All trials of one part of a relay's life, below one folder."""

    def __init__(self, folder: Path, fault: str) -> None:
        self.folder, self.base = folder / "relay", folder / "base"
        self.fault = fault
        self.folder.mkdir(mode=0o700)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        url = f"http://127.0.0.1:{port}"
        self.settings = RelaySettings(listen=f"127.0.0.1:{port}", url=url, registration="open", free_mib_min=1)
        key = witness_signer(self.folder).public
        self.talk = Talk(WitnessRelay(url, key), key)
        self.trace = Trace.shared(CALLS_MAX)
        self.figures = Figures()

    def sweep(self, name: str, points: int) -> Figures:
        """Every call of the part, or so many of each way. The store then is as the part leaves it."""
        self.figures, part = Figures(), PARTS[name]
        self.talk.ahead_s = DAY_S if name == "expire" else 0
        if name == "invite":
            give_invite(self.folder)
        shutil.rmtree(self.base, ignore_errors=True)
        shutil.copytree(self.folder, self.base)
        before = copy.deepcopy(self.talk.answers)
        self._trial(part, Mode.TRACE, 0)
        total = self.figures.calls = self.trace.count
        syncs = sum(one.name in ("fsync", "fdatasync") for one in self.trace.calls())
        kept, after = self.folder.with_name("after"), copy.deepcopy(self.talk.answers)
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(self.folder, kept)
        for mode, count in ((Mode.KILL_BEFORE, total), (Mode.FULL_ANY, total), (Mode.SYNC_ERROR, syncs)):
            for at in chosen(count, points):
                self.talk.answers = copy.deepcopy(before)
                self._trial(part, mode, at)
        shutil.rmtree(self.folder)
        shutil.copytree(kept, self.folder)
        self.talk.answers = after
        if name == "mail" and not self.fault:
            self._wrong_clocks()
        return self.figures

    def _trial(self, part: Any, mode: Mode, at: int) -> None:  # Any: a method of Talk
        if self.fault and self.figures.wrong:
            return  # it was found
        shutil.rmtree(self.folder)
        shutil.copytree(self.base, self.folder)
        said = ""
        with self._serving(lambda: arm(self.trace, mode, at=at, root=self.folder), fault=self.fault) as child:
            if child:
                said = self._first_try(part, child, is_full=mode is Mode.FULL_ANY)
        where = self._where()
        if mode is not Mode.TRACE and not self.trace.reached:
            self.figures.unreached += 1
        try:
            assert not said, said
            with self._serving(_nothing) as child:
                assert child, "the store does not open"
                self._insist(self.talk.check)
                self._insist(lambda: part(self.talk))
                self._insist(self.talk.check)
            self._check_file()
        except (HoldfastError, OSError, AssertionError) as error:
            text = f"{mode.name} at {at} ({where}): {type(error).__name__}: {error}"
            self.figures.wrong.append(text)
            print(text, file=sys.stderr, flush=True)
        self.figures.count(mode.name)

    def _first_try(self, part: Any, child: int, *, is_full: bool) -> str:  # Any: as above
        """Until the relay is dead, or cannot write. With room again a relay that lives must take it."""
        try:
            asyncio.run(part(self.talk))
            return ""
        except Lost as error:
            return str(error)
        except (HoldfastError, OSError):
            if not is_full:
                return ""
        self.trace.give_room()
        if _is_dead(child):
            return ""
        try:
            self._insist(lambda: part(self.talk))
        except (HoldfastError, OSError, AssertionError) as error:
            return "" if _is_dead(child) else f"the disk has room again, and the relay still says: {error}"
        return ""

    def _insist(self, act: Callable[[], Any]) -> None:  # Any: a coroutine
        """As an agent does: the machine may be slow, and a relay that was just started busy."""
        for left in range(TRIES, -1, -1):
            try:
                asyncio.run(act())
                return
            except (HoldfastError, OSError):
                if not left:
                    raise
                time.sleep(AGAIN_S)

    def _check_file(self) -> None:
        check_file(self.folder)

    def _wrong_clocks(self) -> None:
        """The relay's clock is a day off, and then right again: nothing that it confirmed is gone."""
        for ahead_s in (DAY_S, -DAY_S):
            try:
                with self._serving(_nothing, ahead_s=ahead_s):
                    time.sleep(0.1)  # its sweep has run: the short mail may have expired
                    self.talk.answers.expired = True
                    self._insist(self.talk.try_in_vain)
                with self._serving(_nothing):
                    self._insist(self.talk.check)
            except (HoldfastError, OSError, AssertionError) as error:
                self.figures.wrong.append(f"clock {ahead_s:+} s: {type(error).__name__}: {error}")
            self.figures.count("CLOCK")

    @contextmanager
    def _serving(self, armed: Arm, *, fault: str = "", ahead_s: int = 0) -> Generator[int]:
        """The process id while it serves; 0 where it could not begin. Killed at the end."""
        ready, began = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(ready)
            with contextlib.suppress(BaseException):
                self._serve(armed, began, fault, ahead_s or self.talk.ahead_s)
            os._exit(3)
        os.close(began)
        try:
            with open(ready, "rb") as pipe:
                yield child if pipe.read(1) else 0
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)

    def _serve(self, armed: Arm, began: int, fault: str, ahead_s: int) -> None:
        with open(os.devnull, "w") as nothing:
            os.dup2(nothing.fileno(), 2)
        plant(fault)
        armed()
        store = Store(self.folder)
        log = Log()
        relay = Relay(store, witness_signer(self.folder), self.settings, PORT, log, clock=lambda: time.time() + ahead_s)

        def started(_: RunningRelay) -> None:
            os.write(began, b"!")

        asyncio.run(_serve(relay, started=started))

    def _where(self) -> str:
        calls = self.trace.calls()
        acted = self.trace.acted
        return f"{calls[acted - 1].name} {calls[acted - 1].where}" if 0 < acted <= len(calls) else ""


def _is_dead(child: int) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


def sweep_store(folder: Path, names: Iterable[str], points: int, fault: str) -> dict[str, Any]:  # Any: JSON
    """The parts before the last one that is asked for are run as well, undisturbed."""
    wanted, found = list(names), dict[str, Any]()
    trials = StoreTrials(folder, fault)
    for name in PARTS:
        if not set(wanted) - set(found) or (fault and any(one["wrong"] for one in found.values())):
            break
        figures = trials.sweep(name, points if name in wanted else -1)
        if name in wanted:
            found[name] = figures.to_json()
            print(f"{name}: {figures.calls} calls, {figures.trials}, {len(figures.wrong)} wrong", file=sys.stderr)
    return found


def main() -> None:
    folder, points, fault, *names = sys.argv[1:]
    found = sweep_store(Path(folder), [one for one in names if one in PARTS], int(points), fault)
    acts = [one for one in names if one in NAMES]
    if acts:
        found |= sweep_agents(Path(folder), acts, int(points), fault)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
