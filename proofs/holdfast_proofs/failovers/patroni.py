"""A cluster that looks after itself: Patroni in both regions, and a third place in the middle.

The settings are those of the page `docs/how-to/lose-a-region.md`, with the addresses of the namespaces: a change of the
page that breaks the set-up turns this proof red. Nobody promotes here and nobody repairs: the proof cuts and heals, and
waits for what Patroni does. `scripts/setup cluster` takes the programs.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import urllib.request
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.demo.server import before_program, give_to_server
from holdfast_proofs.failovers.cluster import url_of, wait_for
from holdfast_proofs.failovers.network import Network, Region
from holdfast_proofs.runner import ProofFailed
from holdfast_proofs.support.postgres import Process, find_programs, own_folder, without_rights

PAGE = Path(__file__).parents[3] / "docs/how-to/lose-a-region.md"
PROGRAMS = Path(sys.prefix) / "cluster/usr"
USER = "postgres"
_REST = 8008
_LEADER = ("master", "primary")  # the word before and since Patroni 4


def find_etcd() -> Path:
    """Raises ProofFailed."""
    program = PROGRAMS / "bin/etcd"
    if not program.exists():
        raise ProofFailed("Patroni and etcd are not here", hint="run scripts/setup cluster")
    return program


def files_of(page: Path) -> dict[str, str]:
    """The files that the page shows, by name."""
    return dict(re.findall(r"^```\w+ file=(\S+)\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL))


def filled(text: str, number: int, addresses: Sequence[str], paths: Mapping[str, str]) -> str:
    """A file of the page for the place with this number. The page shows the first place; a line that names the second
    one as well is a list of all and stays as it is."""
    for shown, meant in paths.items():
        text = text.replace(shown, meant)
    lines = [line if "db2" in line else line.replace("db1", f"db{number}") for line in text.splitlines()]
    text = "\n".join(lines) + "\n"
    for one, address in enumerate(addresses, 1):
        text = text.replace(f"db{one}.example", address)
    return text


class _Program(Process):
    """A program of one place."""

    def __init__(self, folder: Path, region: Region) -> None:
        super().__init__(folder)
        self._region = region
        folder.mkdir(mode=0o700)
        give_to_server(folder)

    def started_as(self) -> tuple[tuple[str, ...], dict[str, Any]]:
        nobody = without_rights()
        packages = PROGRAMS.parent / "patroni", PROGRAMS / "lib/python3/dist-packages"
        own = {"HOME": str(self.folder), "PYTHONPATH": ":".join(map(str, packages))}
        words = (*self._region.inside(uid=nobody.get("user")), *before_program())
        return words, {"env": {**nobody["env"], **own}}


class Place:
    """One place: etcd and Patroni, which starts and stops its server."""

    def __init__(self, folder: Path, region: Region, number: int, addresses: Sequence[str], *, version: int) -> None:
        self.region = region
        self._etcd = _Program(folder / "etcd", region)
        self._patroni = _Program(folder / "patroni", region)
        self._number, self._addresses, self._version = number, addresses, version

    def start(self) -> None:
        shown, home = files_of(PAGE), self._patroni.folder
        etcd = self._filled(shown["etcd"], {"/var/lib/etcd": str(self._etcd.folder / "data")}).split()
        self._etcd.launch((find_etcd(), *etcd[1:]))
        paths = {
            "/var/lib/postgresql/holdfast": str(home / "data"),
            "/usr/lib/postgresql/15/bin": str(find_programs(self._version)),
            "nofailover: false": f"nofailover: {str(self._number == 3).lower()}",
        }
        ours = f"  parameters:\n    unix_socket_directories: '{home}'\ntags:"  # so that the judge gets in
        (home / "patroni.yml").write_text(self._filled(shown["patroni.yml"], paths).replace("tags:", ours))
        self._patroni.launch(("/usr/bin/python3", "-m", "patroni", home / "patroni.yml"))

    def _filled(self, text: str, paths: Mapping[str, str]) -> str:
        return filled(text, self._number, self._addresses, paths)

    def stop(self) -> None:
        self._patroni.end(signal.SIGKILL)
        with suppress(OSError, ValueError):
            os.kill(int((self._patroni.folder / "data/postmaster.pid").read_text().split()[0]), signal.SIGQUIT)
        self._etcd.end(signal.SIGKILL)

    def check(self) -> None:
        """Raises ProofFailed."""
        for one in (self._etcd, self._patroni):
            if one.ended:
                raise ProofFailed(f"{one.folder.name} of {self.region.name} has ended: {one.said()[-2_000:]}")

    def said(self) -> str:
        return self._patroni.said()[-1_500:]

    def url(self) -> str:
        return f"postgresql://{USER}@/postgres?host={self._patroni.folder}"

    def state(self) -> dict[str, Any]:
        """What Patroni says of its server; empty where it does not answer."""
        try:
            with urllib.request.urlopen(f"http://{self.region.address}:{_REST}/patroni", timeout=2) as answer:
                return json.load(answer)
        except (OSError, ValueError):
            return {}

    @property
    def leads(self) -> bool:
        state = self.state()
        return state.get("role") in _LEADER and state.get("state") == "running"


@dataclass(slots=True)
class PatroniCluster:
    network: Network
    places: Sequence[Place]
    primary: Place

    def url(self, options: Mapping[str, str]) -> str:
        return url_of((self.network.east, self.network.west), options, user=USER)

    def timeline(self) -> int:
        return int(self.primary.state()["timeline"])

    def begin(self) -> None:
        for place in self.places:
            place.start()
        wait_for(self._find_leader, "Patroni has made one of the servers the primary")
        self.rejoin()

    def promote(self) -> None:
        """Patroni's work: wait for it."""
        old = self.primary
        wait_for(lambda: self._find_leader() and self.primary is not old, "Patroni has promoted the other server")

    def rejoin(self) -> None:
        """Patroni's work: every other server is a synchronous standby again, and etcd knows it: only then may that
        server be promoted."""

        def all_there() -> bool:
            return all(place.state().get("sync_standby") for place in self.places if place is not self.primary)

        try:
            wait_for(all_there, "both other servers are synchronous standbys")
        except ProofFailed as error:
            found = "\n".join(f"{place.region.name}: {place.state()} {place.said()}" for place in self.places)
            raise ProofFailed(f"{error}\n{found}") from None

    def _find_leader(self) -> bool:
        for place in self.places:
            place.check()
        leading = [place for place in self.places if place.leads]
        if len(leading) == 1:
            self.primary = leading[0]
        return len(leading) == 1


@contextmanager
def patroni(network: Network, *, version: int) -> Generator[PatroniCluster]:
    regions = (network.east, network.west, network.middle)
    addresses = [region.address for region in regions]
    with ExitStack() as stack:
        places = [
            Place(stack.enter_context(own_folder(on_disk=True)), region, number, addresses, version=version)
            for number, region in enumerate(regions, 1)
        ]
        for place in places:
            stack.callback(place.stop)
        made = PatroniCluster(network, places, places[0])
        made.begin()
        yield made
