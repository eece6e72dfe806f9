"""Regions as network namespaces: made, cut, healed, removed.

Namespaces are named after the process that made them. Those of a process that is gone are removed by the next run,
with whatever still runs in them.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from holdfast_proofs.runner import ProofFailed

_CLONE_NEWNET = 0x40000000
_NAME = re.compile(r"hf-(\d+)-\w+")
_BETWEEN, _WORLD = "10.77.1", "10.77.2"  # the link between the regions, and the one to the world
_MIDDLE_HOST = 254
_NOWHERE = "02:00:00:00:00:01"  # no interface has it
_REGIONS = ("east", "west")


@dataclass(frozen=True, slots=True)
class Region:
    """One side of the network."""

    name: str
    namespace: str
    number: int

    @property
    def address(self) -> str:
        """As the other region and the middle reach it."""
        return f"{_BETWEEN}.{self.number}"

    def inside(self, *, uid: int | None = None) -> tuple[str, ...]:
        """What goes before a command that is to run here, perhaps as another user."""
        user = () if uid is None else (f"--setuid={uid}", f"--setgid={uid}")
        return ("nsenter", f"--net=/run/netns/{self.namespace}", *user, "--")


class Network:
    """Two regions or more, and the middle; this process is in the middle."""

    world = f"{_WORLD}.{_MIDDLE_HOST}"  # where the regions find the services

    def __init__(self, prefix: str, names: Sequence[str]) -> None:
        self.middle = Region("middle", f"{prefix}-middle", _MIDDLE_HOST)
        self.regions = tuple(Region(name, f"{prefix}-{name}", number) for number, name in enumerate(names, 1))
        self.east, self.west = self.regions[:2]

    def make(self) -> None:
        for region in (self.middle, *self.regions):
            _ip("netns", "add", region.namespace)
            self._in(region, "link", "set", "lo", "up")
        for bridge, net in (("between", _BETWEEN), ("world", _WORLD)):
            self._in(self.middle, "link", "add", bridge, "type", "bridge")
            self._in(self.middle, "address", "add", f"{net}.{_MIDDLE_HOST}/24", "dev", bridge)
            self._in(self.middle, "link", "set", bridge, "up")
            for region in self.regions:
                end = f"{region.name}-{bridge[0]}"
                peer = ("peer", "name", bridge, "netns", region.namespace)
                self._in(self.middle, "link", "add", end, "type", "veth", *peer)
                self._in(self.middle, "link", "set", end, "master", bridge, "up")
                self._in(region, "address", "add", f"{net}.{region.number}/24", "dev", bridge)
                self._in(region, "link", "set", bridge, "up")

    @staticmethod
    def world_address(region: Region) -> str:
        """From which the services get its requests."""
        return f"{_WORLD}.{region.number}"

    def cut(self, region: Region, *, from_world: bool = False) -> None:
        """Nothing passes between this region and the other one, nor the middle; the world only where asked for."""
        self._set(region, "down", from_world)

    def heal(self, region: Region) -> None:
        self._set(region, "up", True)
        for one, _, address in self._ways(region):
            with suppress(ProofFailed):  # nothing was lost on this way
                self._in(one, "neighbour", "delete", address, "dev", _device(address))

    def lose(self, region: Region, *, to_region: bool) -> None:
        """One way only: what is sent to the region, or what it sends, is lost, and no sender hears of it."""
        for one, towards, address in self._ways(region):
            if towards == to_region:
                where = ("lladdr", _NOWHERE, "dev", _device(address), "nud", "permanent")
                self._in(one, "neighbour", "replace", address, *where)

    def _ways(self, region: Region) -> list[tuple[Region, bool, str]]:
        """Where packets leave: who sends them, whether towards the region, and to which address."""
        return [
            way
            for net in (_BETWEEN, _WORLD)
            for way in ((self.middle, True, f"{net}.{region.number}"), (region, False, f"{net}.{_MIDDLE_HOST}"))
        ]

    def _set(self, region: Region, state: str, world: bool) -> None:
        for bridge in ("b", "w") if world else ("b",):
            self._in(self.middle, "link", "set", f"{region.name}-{bridge}", state)

    @staticmethod
    def _in(region: Region, *words: str) -> None:
        _ip("-n", region.namespace, *words)

    def enter_middle(self) -> None:
        """This process, and what it starts from now on, is in the middle."""
        with open(f"/run/netns/{self.middle.namespace}") as file:
            if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _CLONE_NEWNET):
                raise ProofFailed(f"cannot enter a network namespace: {os.strerror(ctypes.get_errno())}")


@contextmanager
def network(names: Sequence[str] = _REGIONS) -> Generator[Network]:
    """These regions for the block, in which this process is in the middle. Raises ProofFailed."""
    if os.geteuid() != 0:
        raise ProofFailed("network namespaces need root", hint="run it as root: the servers get the user nobody")
    for one in _namespaces():
        found = _NAME.fullmatch(one)
        if found and not Path(f"/proc/{found.group(1)}").exists():
            _remove(one)
    prefix = f"hf-{os.getpid()}"
    made = Network(prefix, names)
    with open("/proc/self/ns/net") as outside:
        try:
            made.make()
            made.enter_middle()
            yield made
        finally:
            ctypes.CDLL(None).setns(outside.fileno(), _CLONE_NEWNET)
            for one in _namespaces():
                if one.startswith(f"{prefix}-"):
                    _remove(one)


def _device(address: str) -> str:
    return "between" if address.startswith(_BETWEEN) else "world"


def _namespaces() -> Sequence[str]:
    return [line.split()[0] for line in _ip("netns", "list").splitlines() if line]


def _remove(namespace: str) -> None:
    for pid in _ip("netns", "pids", namespace).split():
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    _ip("netns", "delete", namespace)


def _ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    if done.returncode:
        raise ProofFailed(f"ip {' '.join(words)}: {done.stderr.strip()}", hint="iproute2 and root are needed")
    return done.stdout
