"""Of two recoveries the places decide: publishing is create-once, and what lies there is judged by the log's rules."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from folder_engine import FolderEngine

from holdfast.backup.engine import BackupEngine
from holdfast.backup.places.address import PlaceKind
from holdfast.backup.places.companion_files import (
    companion_repository,
    log_in_companions,
    put_companions,
    read_companions,
    read_folder,
)
from holdfast.backup.places.places import Place
from holdfast.backup.places.published import Publisher, check_not_replaced, claim_bytes, claim_name
from holdfast.errors import KeysReplaced
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.records.records import LogPosition
from holdfast.identity.witness.witness import copy_of
from holdfast.layout.witness_address import WitnessFolder
from holdfast_proofs.support.agents import World as IdentityWorld

PORT = Sodium()
Twins = tuple[KeyLog, KeyLog, KeyLog]


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Twins:
    """The log of an agent whose only witness is lost, and those of two machines that recovered it."""
    root = tmp_path_factory.mktemp("twins")
    root.chmod(0o700)
    world = IdentityWorld(root)
    world.make()
    before = world.log()
    shutil.rmtree(root / "w1")
    made: list[KeyLog] = []
    for name in ("m1", "m2"):
        machine = IdentityWorld(root, names=(), home_name=name)
        new = (WitnessFolder(root / f"witness-{name}"),)
        machine.recover(world.words[0], witnesses=(), copies=(copy_of(before),), new_witnesses=new)
        made.append(machine.log())
    return before, made[0], made[1]


def folder_places(root: Path, count: int) -> list[Place]:
    made: list[Place] = []
    for number in range(count):
        own = root / f"p{number}" / "ada"
        own.mkdir(parents=True, mode=0o700)
        (own / "place.json").write_text("{}")
        made.append(
            Place(
                name=f"p{number}",
                kind=PlaceKind.FOLDER,
                address=str(own.parent),
                place_id="",
                repository_id=f"id-{number}",
                agent="ada",
                added_ms=0,
            )
        )
    return made


def publisher(places: Sequence[Place], base: Path) -> Publisher:
    return Publisher(FolderEngine(base), places, PORT)


async def test_the_first_wins_and_the_second_is_told_before_it_reaches_another_place(
    twins: Twins, tmp_path: Path
) -> None:
    _, one, other = twins
    places = folder_places(tmp_path, 2)
    first, second = publisher(places, tmp_path), publisher(list(reversed(places)), tmp_path)
    await first(one)
    await first(one)  # killed and run again: the same bytes
    assert (list(first.told), first.failed) == (["p0", "p1"], {})
    with pytest.raises(KeysReplaced, match=r"another machine recovered .* first: place p0"):
        await second(other)
    assert second.told == {}
    names = sorted(path.name for path in places[0].own.glob("record-*"))
    assert names == ["record-1-0-0.jsonl", "record-1-1-0.jsonl"]


async def test_at_once_exactly_one_wins(twins: Twins, tmp_path: Path) -> None:
    for number in range(25):
        places = folder_places(tmp_path / str(number), 2)
        done = await asyncio.gather(*(publisher(places, tmp_path)(log) for log in twins[1:]), return_exceptions=True)
        assert sorted(type(one).__name__ for one in done) == ["KeysReplaced", "NoneType"], done
        claimed = {(place.own / claim_name(LogPosition(1, 0), 0)).read_bytes() for place in places}
        assert len(claimed) == 1


async def far_place(root: Path, log: KeyLog) -> Place:
    far = Place(
        name="far",
        kind=PlaceKind.SSH,
        address=str(root / "far"),
        place_id="",
        repository_id="id",
        agent="ada",
        added_ms=0,
    )
    lines = b"".join(line + b"\n" for line in copy_of(log).records)
    await put_companions(FolderEngine(root), far, {"place.json": b"{}", "kel.jsonl": lines})
    return far


async def test_a_far_host_decides_too(twins: Twins, tmp_path: Path) -> None:
    before, one, other = twins
    engine, far = FolderEngine(tmp_path), await far_place(tmp_path, before)
    await Publisher(engine, [far], PORT)(one)
    assert len((await engine.list_archives(companion_repository(far), prefix="record-")).archives) == 2
    with pytest.raises(KeysReplaced, match="another machine recovered"):
        await Publisher(engine, [far], PORT)(other)
    beside = log_in_companions(await read_companions(engine, far))
    with pytest.raises(KeysReplaced, match="another copy recovered"):  # the old machine is told
        check_not_replaced(before, beside, where="place far", port=PORT)


async def test_if_each_wins_at_one_place_both_stop_and_name_the_command(twins: Twins, tmp_path: Path) -> None:
    _, one, other = twins
    places = folder_places(tmp_path, 2)
    await publisher(places[:1], tmp_path)(one)
    await publisher(places[1:], tmp_path)(other)
    for log, place in ((one, places[1]), (other, places[0])):
        beside = log_in_companions(read_folder(place.own))
        with pytest.raises(KeysReplaced, match="recovered or rotated twice") as caught:
            check_not_replaced(log, beside, where=f"place {place.name}", port=PORT)
        assert "holdfast recover --again" in caught.value.hint
    again = publisher(places, tmp_path)
    with pytest.raises(KeysReplaced, match="recovered twice at once"):
        await again(one)


async def test_what_is_not_final_is_passed_over_and_stays(twins: Twins, tmp_path: Path) -> None:
    _, one, other = twins
    (place,) = folder_places(tmp_path, 1)
    bare = other.generations[1].tier
    evidence = {
        claim_name(LogPosition(1, 0), 0): claim_bytes(bare).split(b"\n", 1)[0] + b"\n",  # signed, and no receipt
        claim_name(LogPosition(1, 0), 1): b'{"b":',  # cut short
        claim_name(LogPosition(1, 1), 0): b"\0" * 100,
    }
    for name, raw in evidence.items():
        (place.own / name).write_bytes(raw)
    await publisher([place], tmp_path)(one)
    for name, raw in evidence.items():
        assert (place.own / name).read_bytes() == raw
    assert (place.own / claim_name(LogPosition(1, 0), 2)).read_bytes() == claim_bytes(one.generations[1].tier)
    seen = check_not_replaced(one, log_in_companions(read_folder(place.own)), where="", port=PORT)
    assert seen.find_evidence(bare.digest) is not None
    with pytest.raises(KeysReplaced):
        await publisher([place], tmp_path)(other)


async def test_a_place_that_does_not_answer_stops_nothing(twins: Twins, tmp_path: Path) -> None:
    _, one, _ = twins
    places = folder_places(tmp_path, 2)
    shutil.rmtree(places[0].own)
    publish = publisher(places, tmp_path)
    await publish(one)
    assert (list(publish.told), list(publish.failed)) == (["p1"], ["p0"])


@pytest.mark.parametrize("where", ["a disk", "a disk without links", "a far host"])
async def test_if_both_looked_before_either_wrote_one_wins(
    twins: Twins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    both_looked = asyncio.Barrier(2)

    async def look(engine: BackupEngine, place: Place) -> dict[str, bytes]:
        files = await read_companions(engine, place)
        await both_looked.wait()
        return files

    def no_links(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    (place,) = folder_places(tmp_path, 1)
    if where == "a far host":
        place = await far_place(tmp_path, twins[0])
    if where == "a disk without links":
        monkeypatch.setattr("os.link", no_links)
    monkeypatch.setattr("holdfast.backup.places.published.read_companions", look)
    done = await asyncio.gather(*(publisher([place], tmp_path)(log) for log in twins[1:]), return_exceptions=True)
    assert sorted(type(one).__name__ for one in done) == ["KeysReplaced", "NoneType"], done
