"""A revoked rescue key opens no newer snapshot, and what it still opens is said until it opens nothing."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.backup.chain.sources import look_around, survey
from holdfast.backup.engine import Repository
from holdfast.backup.open_engine import open_engine
from holdfast.backup.places.places import read_places, repository_of
from holdfast.errors import EXIT_PLACE, EXIT_UNRESOLVED, PassphraseRefused, VaultLocked
from holdfast.identity.files.own_log import read_own_log
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.vault.rescue import RESCUE, Rescue, open_rescue, read_key_file
from holdfast_proofs.backup_lab.world import World, make_world
from holdfast_proofs.support.warm_start import run_command


def run(world: World, *words: str, code: int = 0) -> tuple[Any, str]:
    done = run_command([*words, "--json", "--home", str(world.home.folder)], timeout=120)
    assert done.returncode == code, done.stdout + done.stderr
    return json.loads(done.stdout or "null"), done.stderr


def opened_at(world: World, key: Path, place: Path) -> Rescue:
    with read_key_file(key) as one:
        return open_rescue([(place / "ada" / RESCUE).read_bytes()], one)


async def refused(world: World, known: Rescue, suffix: str) -> list[str]:
    """The repositories of this name that no passphrase opens which the key ever gave."""
    engine, found = (await open_engine(base=world.root / "thief")).fresh(world.root / "thief"), list[str]()
    for path in sorted(world.root.glob(f"place-*/ada/repository{suffix}")):
        for secret in known.passphrases.values():
            with contextlib.suppress(PassphraseRefused):
                await engine.list_archives(Repository(name="found", address=str(path), passphrase=secret), rescue=True)
                break
        else:
            found.append(str(path.relative_to(world.root)))
    return found


async def test_a_revoked_key_opens_no_newer_snapshot(tmp_path: Path) -> None:
    world = await make_world(tmp_path / "world", places=2, files=3)
    key, night = tmp_path / "key", tmp_path / "night"
    run(world, "rescue", "add", str(key), "--name", "drills")
    run(world, "rescue", "add", str(night), "--name", "night")
    run(world, "backup", "now")
    known, engine = opened_at(world, key, world.place(1)), await open_engine(base=tmp_path / "base")
    first = read_places(world.home.places_file)
    await _forge(engine, first[0], known, world)

    # How much it is, before anything is done.
    planned, _ = run(world, "rescue", "revoke", "drills", "--dry-run")
    assert [one["place"] for one in planned["would"]] == ["place-1", "place-2"]
    assert all(one["bytes"] > 10_000 and one["seconds"] > 0 for one in planned["would"])
    assert read_places(world.home.places_file) == first

    # One disk is in a drawer: the rest is done, and what the key still opens is said.
    away = world.place(2).rename(tmp_path / "drawer")
    done, _ = run(world, "rescue", "revoke", "drills", "--yes", code=EXIT_PLACE)
    assert {one["place"]: (one["done"], one["error"]) for one in done["places"]} == {
        "place-1": (True, ""),
        "place-2": (False, "place-missing"),
    }
    newer = {"place-1": False, "place-2": True}
    assert {one["place"]: one["newer"] for one in done["opens"]} == newer
    _, said = run(world, "drill", "run", "--daily", "--rescue-key", str(key), code=EXIT_UNRESOLVED)
    assert "not-proven" in said
    assert f"the rescue key 'drills' in {key} was revoked" in said
    listed, _ = run(world, "rescue", "list")
    assert {one["place"]: one["newer"] for one in listed["keys"][0]["opens"]} == newer
    rows = {one["id"]: one for one in run(world, "surface", "list")[0]["surfaces"]}
    assert (rows["rescue/night"]["verdict"], rows["rescue/drills"]["verdict"]) == ("covered", "at risk")
    assert "every snapshot at place place-2" in rows["rescue/drills"]["why"]
    assert rows["rescue/drills"]["fix"] == "holdfast rescue revoke drills"
    found, _ = run(world, "doctor", code=1)
    (finding,) = (one for one in found["findings"] if one["check"] == "rescue" and one["level"] == "warning")
    assert "every snapshot at place place-2" in finding["text"]
    assert finding["mend"] == "`holdfast rescue revoke drills`"

    # It is back, and the same command finishes it.
    away.rename(world.place(2))
    run(world, "backup", "now")
    done, _ = run(world, "rescue", "revoke", "drills", "--yes")
    assert [(one["place"], one["done"]) for one in done["places"]] == [("place-2", True)]
    await world.work(2)
    newest = run(world, "backup", "now")[0]["snapshot"]["archive"]
    for place in (world.place(1), world.place(2)):
        with pytest.raises(VaultLocked):
            opened_at(world, key, place)
    assert await refused(world, known, "-2") == ["place-1/ada/repository-2", "place-2/ada/repository-2"]
    assert await refused(world, known, "") == []  # the old ones, as it is said

    # A key that was not revoked opens the new ones, and so do the words on a bare machine.
    _check_bare(world, tmp_path, night, newest)

    removed, _ = run(world, "rescue", "revoke", "drills", "--remove-old", "--yes")
    assert [one["removed"] for one in removed["removed"]] == [True, True]
    assert not removed["opens"]
    assert not [*world.root.glob("place-*/ada/repository")]
    assert run(world, "backup", "verify")[0]["places"][0]["verified"]


async def _forge(engine: Any, place: Any, known: Rescue, world: World) -> None:
    """Its passphrase also writes: what is not signed by the agent is never chosen."""
    folder = world.root / "forged"
    folder.mkdir()
    (folder / "HEAD").write_text("a head of another\n")
    await engine.create(repository_of(place, known), "ada-1-9-20261115T190000Z", folder)
    log = read_own_log(world.home.folder, Sodium())
    listed = await look_around(engine, [place], known)
    found = await survey(engine, listed, {}, log, known, port=Sodium())
    assert [one.record.seq for one in found.places[0].held] == [1]
    assert found.places[0].unnamed == 1


def _check_bare(world: World, tmp_path: Path, night: Path, newest: str) -> None:
    place = ("recover", "--place", str(world.place(2)), "--json")
    for name, how, given in (
        ("by-key", ("--rescue-key", str(night)), ""),
        ("by-words", ("--words-fd", "0"), world.words),
    ):
        done = run_command([*place, *how, "--to", str(tmp_path / name)], cwd=tmp_path, input=given, timeout=120)
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        used = "words" if given else "rescue key"
        assert (report["archive"], report["key_used"]) == (newest, used)
        memory = (tmp_path / name / "MEMORY.md").read_bytes()
        assert memory == world.home.memory_file.read_bytes()
