"""Worker families: a `holdfast worker` that supervises, and the process that works.

A family is killed in one of two ways, by turns: the working process alone, which its parent
starts again, or the parent, with which the kernel kills the worker (PR_SET_PDEATHSIG); then a new
family is started here. A parent waits longer after each death of a child that lived briefly, up
to seconds; that is right for a worker that fails by itself, and would make this a test of the
pause, so a family is replaced after `LIVES_MAX` deaths.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from holdfast.host.hardening import die_with_parent
from holdfast.journal.contract import SessionRow
from holdfast_proofs.soak.site import Host, Site

LIVES_MAX = 2
STOP_S_MAX = 40.0
NAME = "soak"
APP = "holdfast_proofs.soak.app:app"


class Family:
    """One `holdfast worker`."""

    def __init__(self, site: Site, *, number: int, host: Host, concurrency: int, log: Path) -> None:
        self.host = host
        where = ["--journal", str(site.journal)]
        if site.journal.url:
            where += ["--home", str(host.folder)]
        self.name = f"{NAME}-{number}"
        self.deaths = 0
        soak = os.getpid()
        with open(log, "ab") as output:
            self._parent = subprocess.Popen(
                [
                    *host.prefix,
                    sys.executable,
                    "-P",
                    "-m",
                    "holdfast",
                    "worker",
                    APP,
                    *where,
                    "--name",
                    self.name,
                    "--concurrency",
                    str(concurrency),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                process_group=0,
                # A soak that is killed leaves nobody behind.
                preexec_fn=lambda: die_with_parent(soak),  # noqa: PLW1509 - no thread starts one
            )

    @property
    def code(self) -> int | None:
        """The exit code of a family that has ended by itself."""
        return self._parent.poll()

    def kill(self) -> None:
        self._parent.kill()
        self._parent.wait()

    def stop(self) -> None:
        if self._parent.poll() is None:
            self._parent.terminate()

    def wait_end(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._parent.wait(STOP_S_MAX)
        self.kill()


class Workers:
    """As many families as were asked for, whoever dies."""

    def __init__(self, site: Site, *, count: int, concurrency: int, log: Path, seed: int) -> None:
        self._site = site
        self._concurrency = concurrency
        self._log = log
        self._random = random.Random(seed)
        self._started = 0
        self.kills = 0
        self.parents_killed = 0
        self.families = [self._new(site.hosts[number % len(site.hosts)]) for number in range(count)]

    def _new(self, host: Host) -> Family:
        self._started += 1
        return Family(self._site, number=self._started, host=host, concurrency=self._concurrency, log=self._log)

    def kill_one(self, sessions: Sequence[SessionRow]) -> bool:
        """Kill a worker that serves; False where fewer than two do at the moment.

        Somebody is left to resume: on a machine where a start takes longer than the time between
        two kills, nobody would ever do any work, and nothing would be tried.
        """
        named = {family.name: family for family in self.families}
        # Of another host a session counts as alive until its lease is over.
        serving = [one for one in sessions if one.alive and one.worker in named and _lives(one.pid)]
        if len(serving) < 2:
            return False
        session = self._random.choice(serving)
        family = named[session.worker]
        if family.deaths >= LIVES_MAX:
            family.kill()
            self.parents_killed += 1
            self.families[self.families.index(family)] = self._new(family.host)  # no host is left empty
        else:
            family.deaths += 1
            with contextlib.suppress(ProcessLookupError):
                os.kill(session.pid, signal.SIGKILL)
        self.kills += 1
        return True

    def find_ended(self) -> str | None:
        """A family that gave up by itself: nothing here may make it do so."""
        for family in self.families:
            if family.code is not None:
                said = self._log.read_text(errors="replace")[-600:].strip()
                return f"{family.name} ended by itself ({family.code}): {said}"
        return None

    def stop(self) -> None:
        for family in self.families:
            family.stop()
        for family in self.families:
            family.wait_end()


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
