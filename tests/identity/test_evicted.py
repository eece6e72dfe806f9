"""A machine whose keys were replaced by a recovery elsewhere stops by itself, and stays stopped."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.app import eviction
from holdfast.app.eviction import Looked, check_speaks, stopped_when_evicted
from holdfast.backup.places.address import PlaceKind
from holdfast.backup.places.places import Place, write_places
from holdfast.cli.main import main
from holdfast.errors import EXIT_CONFLICT, KeysReplaced
from holdfast.host.log import Log
from holdfast.host.slow_reads import HANGS
from holdfast.identity.files.own_log import write_pending
from holdfast.identity.records.encodings import AgentId
from holdfast.identity.witness.witness_folder import FolderLogStore
from holdfast.layout.agent_home import load_home
from holdfast_proofs.support.agents import World
from holdfast_proofs.support.command_line import Worker, environment

APP = """
import asyncio, pathlib, sys
import holdfast

@holdfast.task
async def hello(run: holdfast.Run) -> str:
    return "hello"

tasks = [hello]
"""


@pytest.fixture
def world(tmp_path: Path) -> World:
    tmp_path.chmod(0o700)
    made = World(tmp_path, names=("w1", "w2", "w3"))
    made.make()
    return made


def elsewhere(world: World) -> World:
    """Another machine, which has the words and reaches the witnesses."""
    other = World(world.root, names=world.names, home_name="elsewhere")
    other.recover(world.words[0])
    return other


def test_what_was_made_here_is_no_eviction(world: World) -> None:
    check_speaks(world.home())
    world.rotate()
    check_speaks(world.home())
    world.evict(world.words[0])
    check_speaks(world.home())


def test_a_record_that_is_being_published_is_ours(world: World) -> None:
    """Sent, and not yet in our own log: another process of this machine is in the middle of it."""
    shutil.copytree(world.folder, world.root / "before")
    world.rotate()
    record = world.log().head.signed
    for name in ("kel.jsonl", "receipts.jsonl"):
        shutil.copy2(world.root / "before" / name, world.folder / name)
    write_pending(world.folder, record)
    check_speaks(world.home())
    (world.folder / "pending.jsonl").unlink()
    with pytest.raises(KeysReplaced):  # World's vault is not opened by a machine alone
        check_speaks(world.home())


def test_a_recovery_elsewhere_is_seen_at_any_one_witness(world: World) -> None:
    elsewhere(world)
    with pytest.raises(KeysReplaced, match="a rotation at generation 1, rotation 1 was not made here") as caught:
        check_speaks(world.home())
    assert str(world.root / "w1") in caught.value.message
    for gone in ("w1", "w2"):
        (world.root / gone).rename(world.root / f"{gone}-gone")
        with pytest.raises(KeysReplaced):
            check_speaks(world.home())
    (world.root / "w3").rename(world.root / "w3-gone")
    check_speaks(world.home())  # silence says nothing


def add_place(world: World) -> Place:
    place = Place(
        name="disk",
        kind=PlaceKind.FOLDER,
        address=str(world.root / "disk"),
        place_id="",
        added_ms=0,
        repository_id="",
        agent="ada",
    )
    write_places(world.folder / "places.json", [place])
    return place


def test_it_is_seen_at_a_place_where_no_witness_answers(world: World) -> None:
    other = elsewhere(world)
    for name in world.names:
        (world.root / name).rename(world.root / f"{name}-gone")
    place = add_place(world)
    check_speaks(world.home())  # the disk is away
    place.own.mkdir(parents=True, mode=0o700)
    for name in ("kel.jsonl", "receipts.jsonl"):
        shutil.copy2(world.folder / name, place.own / name)
    check_speaks(world.home())  # it holds what we know
    for name in ("kel.jsonl", "receipts.jsonl"):
        shutil.copy2(other.folder / name, place.own / name)
    with pytest.raises(KeysReplaced, match="seen at place disk"):
        check_speaks(world.home())
    check_speaks(load_home(other.folder))


# --- a source that hangs, as a folder on a mount whose server is gone ---

HANGS_S_MAX = 15.0  # far more than a look may take; it ends, so that a test that fails ends too


class Hanging:
    """In the place of a read: it gives its answer when the test lets it go."""

    def __init__(self, read: Callable[..., Any], *, only: Path | None = None) -> None:
        self._read, self._only = read, only
        self.go = threading.Event()
        self.calls = 0

    def __call__(self, *given: Any, **named: Any) -> Any:
        if self._only is None or getattr(given[0], "_folder", None) == self._only:
            self.calls += 1
            self.go.wait(HANGS_S_MAX)
        return self._read(*given, **named)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eviction, "ANSWER_S_MAX", 2.0, raising=False)


@pytest.fixture
def hung_place(world: World, monkeypatch: pytest.MonkeyPatch, quick: None) -> Hanging:
    place = add_place(world)
    place.own.mkdir(parents=True, mode=0o700)
    for name in ("kel.jsonl", "receipts.jsonl"):
        shutil.copy2(world.folder / name, place.own / name)
    hanging = Hanging(eviction.read_folder)
    monkeypatch.setattr(eviction, "read_folder", hanging)
    return hanging


async def watched(world: World) -> None:
    """A worker of this folder looks until it has seen its eviction."""
    stopped = asyncio.Event()
    async with (
        asyncio.timeout(HANGS_S_MAX - 3),
        stopped_when_evicted(world.home().journal, stopped.set, notices=None, log=Log()),
    ):
        await stopped.wait()


def test_a_place_that_hangs_stops_no_running_worker_from_seeing_its_eviction(world: World, hung_place: Hanging) -> None:
    elsewhere(world)
    settings = world.folder / "holdfast.toml"
    settings.write_text(settings.read_text().replace("[identity]\n", "[identity]\nwatch_s = 0.5\n"))

    with pytest.raises(KeysReplaced, match="was not made here"):
        asyncio.run(watched(world))
    hung_place.go.set()


def test_while_a_source_is_late_a_worker_looks_again_soon(
    world: World, hung_place: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The place alone shows the eviction, and answers after its time: that counts before `watch_s` is over again."""
    other = elsewhere(world)
    for name in world.names:
        (world.root / name).rename(world.root / f"{name}-gone")
    for name in ("kel.jsonl", "receipts.jsonl"):
        shutil.copy2(other.folder / name, world.root / "disk" / "ada" / name)
    monkeypatch.setattr(eviction, "AGAIN_S", 0.1)
    monkeypatch.setattr(eviction, "ANSWER_S_MAX", 0.5)
    watch_s = 4.0
    settings = world.folder / "holdfast.toml"
    settings.write_text(settings.read_text().replace("[identity]\n", f"[identity]\nwatch_s = {watch_s}\n"))
    looks = list[float]()
    really = eviction.check_speaks

    def counted(*given: Any, **named: Any) -> Looked:
        looks.append(time.monotonic())
        if len(looks) == 3:
            hung_place.go.set()
        return really(*given, **named)

    monkeypatch.setattr(eviction, "check_speaks", counted)
    with pytest.raises(KeysReplaced, match="seen at place disk"):
        asyncio.run(watched(world))
    assert looks[2] - looks[0] < watch_s


def test_a_witness_that_hangs_hides_no_eviction(world: World, monkeypatch: pytest.MonkeyPatch, quick: None) -> None:
    elsewhere(world)
    hanging = Hanging(FolderLogStore.find, only=world.root / "w1")

    def find(store: FolderLogStore, id: AgentId) -> object:
        return hanging(store, id)

    monkeypatch.setattr(FolderLogStore, "find", find)
    began = time.monotonic()
    with pytest.raises(KeysReplaced):
        check_speaks(world.home())
    assert time.monotonic() - began < HANGS_S_MAX - 3
    assert hanging.calls == 1
    hanging.go.set()


def test_a_place_that_hangs_is_silent_and_is_read_again_when_it_answers(world: World, hung_place: Hanging) -> None:
    """No second thread waits for it meanwhile, and no look waits for it twice."""
    looked = check_speaks(world.home())
    assert (looked.answered, looked.silent) == (3, {"place disk": "no answer within 2 s"})
    for _ in range(3):
        assert check_speaks(world.home()).silent == {"place disk": HANGS}
    assert hung_place.calls == 1
    hung_place.go.set()
    until = time.monotonic() + HANGS_S_MAX
    while (looked := check_speaks(world.home())).silent and time.monotonic() < until:
        time.sleep(0.05)
    assert looked.answered == 4


HUNG = """
import asyncio, sys, threading
from pathlib import Path
from holdfast.app import eviction
from holdfast.identity.witness.witness_folder import FolderLogStore
from holdfast.layout.agent_home import load_home
eviction.ANSWER_S_MAX = 1.0
eviction.read_folder = FolderLogStore.find = lambda *_, **__: threading.Event().wait()
home = load_home(Path(sys.argv[1]))
print(len(asyncio.run(asyncio.to_thread(eviction.check_speaks, home)).silent))
"""


def test_a_process_ends_while_its_sources_hang(world: World) -> None:
    add_place(world)
    line = [sys.executable, "-c", HUNG, str(world.folder)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=True)
    assert int(done.stdout) == 4  # three witnesses and the place


def _init(root: Path, watch_s: float) -> str:
    """An agent as `holdfast init` makes it, whose worker starts without a person; its words."""
    reads, writes = os.pipe()
    assert (
        main(
            [
                "init",
                "ada",
                "--home",
                str(root / "ada"),
                "--vault",
                str(root / "vault"),
                "--second",
                str(root / "second"),
                "--witness",
                str(root / "witness"),
                "--arbiter",
                str(root / "arbiter"),
                "--unlock-file",
                str(root / "unlock"),
                "--second-unlock-file",
                str(root / "unlock2"),
                "--words-fd",
                str(writes),
            ]
        )
        == 0
    )
    os.close(writes)
    settings = root / "ada" / "holdfast.toml"
    text = settings.read_text()
    assert text.count("[identity]\n") == 1
    text = text.replace("[identity]\n", f"[identity]\nwatch_s = {watch_s}\n")
    notice = f"cat >> {root / 'told'}; echo >> {root / 'told'}"
    settings.write_text(f'{text}\n[notices]\ncommand = ["sh", "-c", "{notice}"]\n')
    with open(reads, encoding="utf-8") as pipe:
        return pipe.read().strip()


def test_an_older_folder_with_the_vault_of_today_is_only_behind(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    _init(tmp_path, 60.0)
    folder = tmp_path / "ada"
    shutil.copytree(folder, tmp_path / "before")
    assert main(["identity", "rotate", "--home", str(folder), "--yes"]) == 0
    for name in ("kel.jsonl", "receipts.jsonl"):
        shutil.copy2(tmp_path / "before" / name, folder / name)
    check_speaks(load_home(folder))
    (tmp_path / "unlock").unlink()
    with pytest.raises(KeysReplaced):  # a vault that does not open proves nothing
        check_speaks(load_home(folder))


def _recover(root: Path, words: str) -> None:
    reads, writes = os.pipe()
    os.write(writes, f"{words}\n".encode())
    os.close(writes)
    assert (
        main(
            [
                "identity",
                "recover",
                "--home",
                str(root / "new"),
                "--name",
                "ada",
                "--vault",
                str(root / "vault2"),
                "--second",
                str(root / "second2"),
                "--witness",
                str(root / "witness"),
                "--unlock-file",
                str(root / "unlock3"),
                "--second-unlock-file",
                str(root / "unlock4"),
                "--yes",
                "--words-fd",
                str(reads),
            ]
        )
        == 0
    )
    os.close(reads)


def test_a_running_worker_stops_within_the_interval_and_does_not_start_again(
    tmp_path: Path, measured: Callable[[str], None]
) -> None:
    """Real processes; the other machine is another folder."""
    tmp_path.chmod(0o700)
    watch_s = 1.0
    words = _init(tmp_path, watch_s)
    (tmp_path / "app.py").write_text(APP)
    command = ("worker", f"{tmp_path / 'app.py'}:tasks")
    folder = tmp_path / "ada"
    worker = Worker(folder, command, environment(folder))
    try:
        worker.wait_event("serving")
        # A rotation of its own does not stop it: it is still there when the recovery comes.
        assert main(["identity", "rotate", "--home", str(folder), "--yes"]) == 0
        time.sleep(2.5 * watch_s)
        assert worker.process.poll() is None
        _recover(tmp_path, words)
        began = time.monotonic()
        assert worker.wait_end() == EXIT_CONFLICT
        took_s = time.monotonic() - began
    finally:
        worker.close()
    said = "".join(worker.said)
    assert '"stopping"' in said
    assert "error: " in said
    assert "was not made here" in said
    assert "`holdfast recover`" in said
    assert took_s < 20 * watch_s, "an order of magnitude: the machine may be busy"
    measured(f"evicted worker: stopped {took_s:.1f} s after the recovery, looking each {watch_s} s")
    again = Worker(folder, command, environment(folder))
    try:
        assert again.wait_end() == EXIT_CONFLICT
    finally:
        again.close()
    assert not any('"serving"' in line for line in again.said)
    assert any("keys were replaced" in line for line in again.said)
    told = (tmp_path / "told").read_text()
    assert told.count('"keys-replaced"') == 1, "once, also where the system starts it again"
