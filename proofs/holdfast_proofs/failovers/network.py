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
    """Two regions and the middle; this process is in the middle."""

    world = f"{_WORLD}.{_MIDDLE_HOST}"  # where the regions find the services

    def __init__(self, prefix: str) -> None:
        self.middle = Region("middle", f"{prefix}-middle", _MIDDLE_HOST)
        self.east = Region("east", f"{prefix}-east", 1)
        self.west = Region("west", f"{prefix}-west", 2)

    def make(self) -> None:
        for region in (self.middle, self.east, self.west):
            _ip("netns", "add", region.namespace)
            self._in(region, "link", "set", "lo", "up")
        for bridge, net in (("between", _BETWEEN), ("world", _WORLD)):
            self._in(self.middle, "link", "add", bridge, "type", "bridge")
            self._in(self.middle, "address", "add", f"{net}.{_MIDDLE_HOST}/24", "dev", bridge)
            self._in(self.middle, "link", "set", bridge, "up")
            for region in (self.east, self.west):
                end = f"{region.name}-{bridge[0]}"
                peer = ("peer", "name", bridge, "netns", region.namespace)
                self._in(self.middle, "link", "add", end, "type", "veth", *peer)
                self._in(self.middle, "link", "set", end, "master", bridge, "up")
                self._in(region, "address", "add", f"{net}.{region.number}/24", "dev", bridge)
                self._in(region, "link", "set", bridge, "up")

    def cut(self, region: Region, *, from_world: bool = False) -> None:
        """Nothing passes between this region and the other one, nor the middle; the world only where asked for."""
        self._set(region, "down", from_world)

    def heal(self, region: Region) -> None:
        self._set(region, "up", True)

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
def network() -> Generator[Network]:
    """Two regions for the block, in which this process is in the middle. Raises ProofFailed."""
    if os.geteuid() != 0:
        raise ProofFailed("network namespaces need root", hint="run it as root: the servers get the user nobody")
    for one in _namespaces():
        found = _NAME.fullmatch(one)
        if found and not Path(f"/proc/{found.group(1)}").exists():
            _remove(one)
    prefix = f"hf-{os.getpid()}"
    made = Network(prefix)
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
