"""Updates that are not taken: each with its reason, and with nothing changed."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import msgspec
import pytest
from loro import ExportMode, LoroDoc, VersionVector
from nacl.signing import SigningKey

from holdfast.errors import BadUpdate, HoldfastError, UpdateNewer, UpdateRefused
from holdfast.identity.records.signed import Family, message
from holdfast.instances.channels import NEWEST, FolderChannel
from holdfast.instances.envelope import (
    ENVELOPE_BYTES_MAX,
    UPDATES_MAX,
    Parcel,
    Peers,
    open_parcel,
    seal_parcel,
    update_key,
)
from holdfast.instances.line_document import CHANGES_MAX, LineDocument
from holdfast.instances.merging import Merging
from holdfast.instances.shared import Update
from holdfast.instances.try_copy import check_foreign
from holdfast.layout.agent_home import MemoryPlace
from holdfast.memory.projection import locked

AGENT = "hf1" + "q" * 58
KEY = update_key(bytes(32))
SEEDS = {name: SigningKey(name.encode().ljust(32)) for name in ("alder", "birch", "thief")}
NOW = 1_800_000_000_000


def peers(me: str, **changes: object) -> Peers:
    found = Peers(
        agent=AGENT,
        incarnation=3,
        me=me,
        keys={name: bytes(SEEDS[name].verify_key) for name in ("alder", "birch")},
        sign=lambda text: SEEDS[me].sign(text).signature,
    )
    return replace(found, **changes)


def parcel(lines: tuple[str, ...] = ("# Memory", "- of birch")) -> Parcel:
    document = LineDocument.from_lines(lines)
    update = Update(instance="birch", file="MEMORY.md", version=document.version(), data=document.whole(), whole=True)
    return Parcel(at_ms=NOW, updates=(update,))


def sealed(found: Parcel | None = None, **changes: object) -> bytes:
    return seal_parcel(found or parcel(), replace(peers("birch"), **changes), KEY)


def opened(raw: bytes, **changes: object) -> Parcel:
    return open_parcel(raw, peers("alder", **changes), KEY, sender="birch")


def forged(change: Callable[[list[object]], object]) -> bytes:
    """An envelope with another outer part, signed as it should be."""
    outer, _ = msgspec.msgpack.decode(sealed())
    fields: list[object] = msgspec.msgpack.decode(outer)
    change(fields)
    raw = msgspec.msgpack.encode(fields)
    return msgspec.msgpack.encode([raw, SEEDS["birch"].sign(message(Family.UPDATE, raw)).signature])


def flipped(raw: bytes) -> bytes:
    return raw[:-1] + bytes([raw[-1] ^ 1])


def with_updates(*updates: Update) -> bytes:
    return sealed(Parcel(at_ms=NOW, updates=updates))


def test_an_envelope_opens_for_the_other_instance() -> None:
    assert opened(sealed()) == parcel()
    assert b"of birch" not in sealed()
    assert len(sealed()) < 1_000


UPDATE = parcel().updates[0]
REFUSED: dict[str, tuple[Callable[[], bytes], type[HoldfastError], str]] = {
    "cut": (lambda: sealed()[:-1], BadUpdate, "truncated"),
    "empty": (lambda: b"", BadUpdate, "damaged"),
    "noise": (lambda: os.urandom(500), BadUpdate, "damaged"),
    "flipped": (lambda: flipped(sealed()), UpdateRefused, "did not sign it"),
    "other agent": (lambda: sealed(agent="hf1" + "z" * 58), UpdateRefused, "another agent"),
    "unknown": (lambda: sealed(me="thief"), UpdateRefused, "not enrolled"),
    "in another's name": (lambda: sealed(sign=peers("thief").sign), UpdateRefused, "sign"),
    "before a restore": (lambda: sealed(incarnation=2), UpdateRefused, "before the agent was restored"),
    "future": (lambda: forged(lambda fields: fields.__setitem__(0, 2)), UpdateNewer, "version 2"),
    "moved to another incarnation": (
        lambda: forged(lambda fields: fields.__setitem__(2, 4)),
        UpdateRefused,
        "another key",
    ),
    "other key": (lambda: seal_parcel(parcel(), peers("birch"), update_key(b"x" * 32)), UpdateRefused, "another key"),
    "a path": (lambda: with_updates(replace_file("../../etc/passwd")), BadUpdate, "etc/passwd"),
    "settings": (lambda: with_updates(replace_file("holdfast.toml")), BadUpdate, "holdfast.toml"),
    "of a third": (lambda: with_updates(msgspec.structs.replace(UPDATE, instance="alder")), BadUpdate, "alder"),
    "too many tiny ones": (lambda: many(UPDATES_MAX + 1), BadUpdate, "cannot be read"),
    "long": (lambda: bytes(ENVELOPE_BYTES_MAX + 1), BadUpdate, "more than"),
}


def replace_file(name: str) -> Update:
    return msgspec.structs.replace(UPDATE, file=name)


def many(count: int) -> bytes:
    """Our own code makes them as well: its limits are checked where they are read."""
    return with_updates(*[Update(instance="birch", file="MEMORY.md", version=b"")] * count)


@pytest.mark.parametrize("case", list(REFUSED))
def test_what_is_not_an_update_of_an_enrolled_instance_is_refused(case: str) -> None:
    make, kind, words = REFUSED[case]
    raw = make()
    with pytest.raises(kind, match=words) as raised:
        opened(raw)
    assert raised.value.hint


def test_an_update_of_an_instance_that_was_removed_is_refused() -> None:
    raw = sealed()
    with pytest.raises(UpdateRefused, match="was removed"):
        opened(raw, keys={"alder": bytes(SEEDS["alder"].verify_key)})


def one_host(tmp_path: Path) -> tuple[Merging, Path]:
    """A host that has merged with another, and where the other's newest envelope is."""
    folder, shared = tmp_path / "alder", tmp_path / "shared"
    folder.mkdir(mode=0o700)
    shared.mkdir()
    channel = FolderChannel(shared, agent=AGENT, instance="birch")
    channel.put(NEWEST, sealed())
    merging = Merging(
        MemoryPlace(folder=folder), FolderChannel(shared, agent=AGENT, instance="alder"), peers("alder"), KEY
    )
    merging.run(now_ms=NOW)
    assert (folder / "MEMORY.md").read_text() == "# Memory\n- of birch\n"
    return merging, next(shared.glob(f"*/birch/{NEWEST}"))


def kept(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.parent.name != "instance"}


def bomb() -> bytes:
    """A copy of 100 KB that is 12 MB of text."""
    document = LoroDoc()
    lines = document.get_list("lines")
    for number in range(3):
        lines.push(["a" * (4 << 20) + str(number), 0])
    document.commit()
    return document.export(ExportMode.Snapshot())


def tiny_changes(count: int) -> bytes:
    document = LoroDoc()
    lines = document.get_list("lines")
    for _ in range(count):
        lines.push("")
    document.commit()
    return document.export(ExportMode.Updates(VersionVector()))


def test_large_ones_are_refused_with_little_memory_and_nothing_changed(tmp_path: Path) -> None:
    merging, newest = one_host(tmp_path)
    before = kept(tmp_path / "alder")
    packed = bomb()
    assert len(packed) < 150_000
    for raw, words in (
        (None, "more than"),  # 100 MB
        (with_updates(msgspec.structs.replace(UPDATE, data=packed)), "too much memory"),
        (
            with_updates(msgspec.structs.replace(UPDATE, data=tiny_changes(CHANGES_MAX + 1), whole=False)),
            "200,001 changes",
        ),
        (with_updates(msgspec.structs.replace(UPDATE, data=b"noise")), "cannot be read"),
        (with_updates(msgspec.structs.replace(UPDATE, version=b"\xff" * 9)), "cannot be read"),
    ):
        newest.unlink()
        if raw is None:
            newest.touch()
            os.truncate(newest, 100_000_000)
        else:
            newest.write_bytes(_unknown(raw))
        tracemalloc.start()
        merging.run(now_ms=NOW)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
        tracemalloc.stop()
        assert words in merging.state.peers["birch"].waits
        assert kept(tmp_path / "alder") == before


def _unknown(raw: bytes) -> bytes:
    """With a version that is not known here, so that its data is looked at."""
    found = opened(raw).updates[0]
    if found.version != UPDATE.version:
        return raw
    other = LineDocument.from_lines(["- other lines"]).version()
    return with_updates(msgspec.structs.replace(found, version=other))


def test_a_copy_is_tried_in_a_process_of_its_own() -> None:
    check_foreign(LineDocument.from_lines(["- a line"]).copy())
    with pytest.raises(BadUpdate, match="too much memory"):
        check_foreign(bomb())


def test_others_may_write_the_memory_while_a_copy_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    merging, newest = one_host(tmp_path)
    place, tried = MemoryPlace(folder=tmp_path / "alder"), list[object]()
    run = cast("Callable[..., object]", subprocess.run)

    def slow(*given: object, **named: object) -> object:
        with locked(place, wait_s=0.0):
            tried.append(given)
        return run(*given, **named)

    document = LineDocument.from_lines(["# Memory", "- in a copy"])
    update = msgspec.structs.replace(UPDATE, version=document.version(), data=document.copy())
    newest.unlink()
    newest.write_bytes(with_updates(update))
    monkeypatch.setattr(subprocess, "run", slow)
    merging.run(now_ms=NOW)
    assert len(tried) == 1
    assert "- in a copy" in (tmp_path / "alder" / "MEMORY.md").read_text()


def large_bomb() -> bytes:
    """A copy of under 1 MB that is 100 MB of text: an envelope may have forty times as much."""
    document = LoroDoc()
    for number in range(25):
        document.get_list("lines").push(["a" * (4 << 20) + str(number), 0])
        document.commit()
    return document.export(ExportMode.Snapshot())


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
def test_a_packed_copy_is_unpacked_nowhere_but_in_that_process(tmp_path: Path) -> None:
    """Measured by the kernel, in a process of its own: the library's memory is not Python's."""
    (tmp_path / "copy").write_bytes(large_bomb())
    assert (tmp_path / "copy").stat().st_size < 1_000_000
    code = """
import re, sys
from pathlib import Path
from holdfast.errors import BadUpdate
from holdfast.instances.try_copy import check_foreign

def most_kb() -> int:
    return int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1])

data, before = Path(sys.argv[1]).read_bytes(), most_kb()
try:
    check_foreign(data)
except BadUpdate as error:
    print(error.message)
print((most_kb() - before) // 1024)
"""
    command = [sys.executable, "-c", code, str(tmp_path / "copy")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    message, grown_mb = done.stdout.splitlines()
    assert "too much memory" in message
    assert int(grown_mb) < 40


def test_a_copy_with_too_many_changes_is_refused() -> None:
    document = LoroDoc()
    for _ in range(CHANGES_MAX + 1):
        document.get_list("lines").push("")
    document.commit()
    with pytest.raises(BadUpdate, match="more than 200,000 changes"):
        check_foreign(document.export(ExportMode.Snapshot()))
