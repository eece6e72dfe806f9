"""Places: added, known again, moved, mended; on a disk, on a far host, and from bare paper."""

from __future__ import annotations

import asyncio
import json
import shutil
import stat
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import pytest

from holdfast.backup.backups import run_jobs
from holdfast.backup.borg.verbs import Borg
from holdfast.backup.engine import Repository
from holdfast.backup.places import place_state
from holdfast.backup.places.address import PlaceKind, parse_address
from holdfast.backup.places.backup_places import BackupPlaces, PlaceRequest, open_places
from holdfast.backup.places.companion_files import read_companions, read_folder
from holdfast.backup.places.places import ABOUT, SENTINEL, Place, check_there, read_places, shared_domains, write_places
from holdfast.errors import (
    BadPlace,
    PlaceMissing,
    PlaceNotFound,
    PlaceRefused,
    PlaceTaken,
    PlaceUnreachable,
    RepositoryDamaged,
    RepositoryKeyMissing,
    RepositoryMoved,
    VaultMissing,
)
from holdfast.identity.paper.derive import PaperKeys
from holdfast.identity.paper.phrase import Phrase
from holdfast.identity.vault.ring import open_escrow, read_escrow
from holdfast.layout.agent_home import AgentHome, load_home
from holdfast.layout.settings import AgentSettings


def disk(folder: Path) -> str:
    folder.mkdir()
    return str(folder)


async def test_two_places_each_with_its_own_key_and_all_that_paper_needs(
    places: BackupPlaces, tmp_path: Path, phrase: Phrase, program: Path
) -> None:
    """Words and any one place open everything, on a machine that knows nothing else."""
    nas = await places.add(PlaceRequest(name="nas", address=disk(tmp_path / "nas"), domain="cellar"))
    usb = await places.add(PlaceRequest(name="usb", address=disk(tmp_path / "usb")))
    assert places.read() == (nas, usb)
    assert nas.repository_id != usb.repository_id
    assert (nas.domain, usb.domain) == ("cellar", "this machine")
    source = tmp_path / "staged"
    source.mkdir()
    (source / "MEMORY.md").write_text("the canary sings\n")
    await places.engine.create(places.repository(usb), "ada-1-1-x", source)

    found = read_folder(usb.own)  # all that is left
    assert sorted(found) == ["escrow.age", "keys/nas.key", "place.json"]
    escrow = open_escrow(found["escrow.age"], PaperKeys(phrase).escrow())
    said = json.loads(found["place.json"])
    bare = Borg(program, base=tmp_path / "bare machine")
    repository = Repository(
        name="found",
        address=str(usb.own / "repository"),
        passphrase=escrow.backup_passphrase(said["place"], epoch=said["epoch"]),
    )
    listing = await bare.list_archives(repository, rescue=True)
    assert [one.name for one in listing.archives] == ["ada-1-1-x"]
    assert found["keys/nas.key"].startswith(f"BORG_KEY {nas.repository_id}".encode())
    for path in (nas.own, usb.own, usb.own / "escrow.age", tmp_path / "ada" / "places.json"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0


async def test_a_disk_that_is_not_mounted_is_not_a_new_disk(places: BackupPlaces, tmp_path: Path) -> None:
    place = await places.add(PlaceRequest(name="usb", address=disk(tmp_path / "usb")))
    (tmp_path / "usb").rename(tmp_path / "on the desk")
    (tmp_path / "usb").mkdir()  # the empty mount point
    with pytest.raises(PlaceMissing, match="is the disk mounted") as caught:
        check_there(place)
    assert f"mount the disk at {tmp_path}/usb" in caught.value.hint
    with pytest.raises(PlaceMissing):
        await places.check("usb")
    assert list((tmp_path / "usb").iterdir()) == [], "nothing was written below the mount"
    shutil.copytree(tmp_path / "on the desk", tmp_path / "usb", dirs_exist_ok=True)
    (tmp_path / "usb" / SENTINEL).write_text('{"format": 1, "place_id": "of another disk"}')
    with pytest.raises(PlaceMissing, match="another place is mounted"):
        check_there(place)
    (tmp_path / "usb" / SENTINEL).unlink()
    places.mark("usb")
    check_there(place)


async def test_adding_again_after_a_kill_takes_the_repository_over(places: BackupPlaces, tmp_path: Path) -> None:
    first = await places.add(PlaceRequest(name="nas", address=disk(tmp_path / "nas")))
    (tmp_path / "ada" / "places.json").unlink()
    again = await places.add(PlaceRequest(name="nas", address=str(tmp_path / "nas")))
    assert (again.repository_id, again.epoch) == (first.repository_id, first.epoch)


async def test_a_name_that_is_used_again_gets_another_passphrase(places: BackupPlaces, tmp_path: Path) -> None:
    first = await places.add(PlaceRequest(name="nas", address=disk(tmp_path / "one")))
    places.remove("nas")
    assert places.read() == ()
    assert first.own.is_dir(), "what was backed up stays"
    second = await places.add(PlaceRequest(name="nas", address=disk(tmp_path / "two")))
    assert (first.epoch, second.epoch) == (1, 2)
    escrow = read_escrow(places.vault)
    assert escrow.backup_passphrase("nas", epoch=1) != escrow.backup_passphrase("nas", epoch=2)
    assert escrow.places == (str(second.own),)


async def test_a_repository_whose_making_was_killed_is_made_again(places: BackupPlaces, tmp_path: Path) -> None:
    made = await places.add(PlaceRequest(name="nas", address=disk(tmp_path / "nas")))
    places.remove("nas")
    repository = made.own / "repository"

    def cut(*patterns: str) -> None:
        for path in [one for pattern in patterns for one in repository.glob(pattern)]:
            path.unlink()

    cut("data/0/*", "index.*", "hints.*", "integrity.*")  # as Borg leaves it, killed before the manifest
    with pytest.raises(RepositoryDamaged, match="no manifest"):  # it was in use once: a person must look
        await places.add(PlaceRequest(name="nas", address=str(tmp_path / "nas")))
    (made.own / ABOUT).unlink()
    (repository / "data" / "0" / "7").write_bytes(bytes(2_000))  # something is stored in it
    with pytest.raises(RepositoryDamaged):
        await places.add(PlaceRequest(name="nas", address=str(tmp_path / "nas")))
    cut("data/0/*", "index.*", "hints.*", "integrity.*")
    again = await places.add(PlaceRequest(name="nas", address=str(tmp_path / "nas")))
    assert again.repository_id != made.repository_id
    assert (await places.engine.list_archives(places.repository(again))).archives == ()


async def test_what_is_not_ours_is_refused(places: BackupPlaces, tmp_path: Path, template: Path) -> None:
    strange = tmp_path / "strange" / "ada"
    strange.mkdir(parents=True, mode=0o700)
    shutil.copytree(template / "repository", strange / "repository")
    with pytest.raises(PlaceTaken, match="this agent has no key or passphrase for the repository") as caught:
        await places.add(PlaceRequest(name="nas", address=str(tmp_path / "strange")))
    assert "nothing there was changed" in caught.value.hint
    with pytest.raises(PlaceMissing, match="there is no folder") as missing:
        await places.add(PlaceRequest(name="nas", address=str(tmp_path / "not mounted")))
    assert "mount the disk first" in missing.value.hint
    assert not (tmp_path / "not mounted").exists()
    for odd in ("relative/path", "/a::b", "/a{now}", "ssh://-oProxyCommand=x/p", "ssh://h"):
        with pytest.raises(BadPlace):
            await places.add(PlaceRequest(name="nas", address=odd))
    for odd in ("NAS", "", "-x", "a/b", "x" * 41):
        with pytest.raises(BadPlace):
            await places.add(PlaceRequest(name=odd, address=str(tmp_path)))
    assert places.read() == ()


async def test_a_repository_moved_and_a_key_mended(places: BackupPlaces, tmp_path: Path) -> None:
    place = await places.add(PlaceRequest(name="nas", address=disk(tmp_path / "nas")))
    config = place.own / "repository" / "config"
    whole = config.read_text()
    config.write_text(whole[: whole.index("key =")])
    with pytest.raises(RepositoryKeyMissing):
        await places.check("nas")
    await places.mend_key("nas")
    await places.check("nas", deep=True)
    (tmp_path / "nas").rename(tmp_path / "rack")
    moved = msgspec.structs.replace(place, address=str(tmp_path / "rack"))
    write_places(places.home.places_file, [moved])
    with pytest.raises(RepositoryMoved):
        await places.check("nas")
    write_places(places.home.places_file, [place])
    shutil.copytree(tmp_path / "rack", places.home.folder / "rack")
    with pytest.raises(BadPlace, match="is inside the agent's folder"):
        await places.move("nas", str(places.home.folder / "rack"))
    await places.move("nas", str(tmp_path / "rack"))
    assert (await places.check("nas")).repository_id == place.repository_id
    assert read_escrow(places.vault).places == (str(tmp_path / "rack" / "ada"),)


def serve(tmp_path: Path, program: Path, *options: str) -> str:
    """In place of ssh: what a forced command on the far host would run."""
    script = tmp_path / "rsh"
    script.write_text(f'#!/bin/sh\nexec "{program}" serve {" ".join(options)}\n')
    script.chmod(0o700)
    return str(script)


async def test_a_far_host_that_only_speaks_borg(
    places: BackupPlaces, tmp_path: Path, program: Path, phrase: Phrase
) -> None:
    far = tmp_path / "far"
    far.mkdir()
    rsh = serve(tmp_path, program, f"--restrict-to-path {far}", "--append-only")
    place = await places.add(PlaceRequest(name="host", address=f"ada@far.example:{far}/ada", rsh=rsh, append_only=True))
    assert (place.kind, place.domain) == (PlaceKind.SSH, "far.example")
    assert place.address == f"ssh://ada@far.example{far}/ada"
    source = tmp_path / "staged"
    source.mkdir()
    (source / "MEMORY.md").write_text("x")
    repository = places.repository(place)
    for name in ("one", "two"):
        await places.engine.create(repository, name, source)
    found = await read_companions(Borg(program, base=tmp_path / "bare"), place)
    escrow = open_escrow(found["escrow.age"], PaperKeys(phrase).escrow())
    assert escrow.backup_passphrase("host") == repository.passphrase
    assert json.loads(found["place.json"])["repository_id"] == place.repository_id

    await places.engine.delete(repository, ["one"])  # answers well, and keeps the data
    await places.engine.compact(repository)
    assert [one.name for one in (await places.engine.list_archives(repository)).archives] == ["two"]
    assert (far / "ada" / "transactions").read_text().count("transaction") >= 3

    outside = Repository(
        name="host", address=f"ssh://ada@far.example{tmp_path}/elsewhere", rsh=rsh, passphrase=repository.passphrase
    )
    with pytest.raises(PlaceRefused) as refused:
        await places.engine.list_archives(outside)
    assert "--restrict-to-path" in refused.value.hint
    away = msgspec.structs.replace(place, rsh="/bin/false")
    with pytest.raises(PlaceUnreachable, match=r"Connection (closed|to remote host is broken)") as caught:
        await places.engine.list_archives(places.repository(away))
    assert "try the same ssh address by hand" in caught.value.hint


async def test_one_place_that_fails_stops_no_other(places: BackupPlaces, tmp_path: Path) -> None:
    """Each has its own result, its own time, its own times."""

    def place(name: str) -> Place:
        root = tmp_path / name
        root.mkdir()
        (root / SENTINEL).write_text('{"format": 1, "place_id": "p"}')
        return Place(
            name=name,
            kind=PlaceKind.FOLDER,
            address=str(root),
            place_id="p",
            repository_id="r",
            agent="ada",
            added_ms=0,
        )

    async def job(place: Place) -> None:
        match place.name:
            case "fails":
                raise PlaceRefused("no")
            case "hangs":
                await asyncio.sleep(60)
            case _:
                pass
        for act in (place_state.made, place_state.verified) if place.name == "good" else (place_state.made,):
            places.states.change(place.name, partial(act, now_ms=5_000, snapshot="ada-1-1-x"))

    rows = [place(name) for name in ("fails", "hangs", "good", "made")]
    gone = place("gone")
    (Path(gone.address) / SENTINEL).unlink()
    done = await run_jobs([*rows, gone], job, states=places.states, now_ms=lambda: 5_000, timeout_s=0.5)
    codes = {name: error.code if error else "ok" for name, error in done.items()}
    assert codes == {
        "fails": "place-refused",
        "hangs": "backup-interrupted",
        "good": "ok",
        "made": "ok",
        "gone": "place-missing",
    }
    good, fails, made = (places.states.of(name) for name in ("good", "fails", "made"))
    assert (good.tried_ms, good.made_ms, good.verified_ms, good.result) == (5000, 5000, 5000, "ok")
    assert (fails.tried_ms, fails.made_ms, fails.failures, fails.message) == (5000, 0, 1, "no")
    assert (made.made_ms, made.verified_ms) == (5000, 0), "made is not verified"


def test_a_places_file_is_read_strictly(tmp_path: Path) -> None:
    path = tmp_path / "places.json"
    assert read_places(path) == ()
    good = Place(
        name="nas", kind=PlaceKind.FOLDER, address="/mnt/nas", place_id="p", repository_id="r", agent="ada", added_ms=1
    )
    write_places(path, [good])
    assert read_places(path) == (good,)
    raw = json.loads(path.read_text())
    for name, value in (
        ("address", "relative"),
        ("address", "/a/../{b}"),
        ("agent", "../x"),
        ("kind", "s3"),
        ("epoch", 0),
        ("name", "Nas"),
        ("unknown", 1),
        ("kind", "ssh"),
    ):
        path.write_text(json.dumps({"format": 1, "places": [{**raw["places"][0], name: value}]}))
        with pytest.raises(BadPlace):
            read_places(path)
    path.write_bytes(b'{"format": 1, "places": [{"name": "\xff"}]}')
    with pytest.raises(BadPlace):
        read_places(path)
    path.write_text(json.dumps({"format": 2, "places": []}))
    with pytest.raises(BadPlace, match="format 2"):
        read_places(path)


def test_places_that_fail_together_are_named() -> None:
    def at(name: str, domain: str) -> Place:
        return Place(
            name=name,
            kind=PlaceKind.FOLDER,
            address="/x",
            place_id="",
            repository_id="",
            agent="a",
            added_ms=0,
            domain=domain,
        )

    rows = [at("a", "cellar"), at("b", "far.example"), at("c", "Cellar")]
    assert shared_domains(rows) == {"cellar": ("a", "c")}


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("/mnt/nas/", "/mnt/nas"),
        ("ssh://u@h.example:2222/./repo", "ssh://u@h.example:2222/./repo"),
        ("u@h.example:repo", "ssh://u@h.example/./repo"),
        ("h:/srv/x", "ssh://h/srv/x"),
        ("ssh://u@[::1]/x", None),
    ],
)
def test_addresses_as_people_write_them(text: str, meant: str | None) -> None:
    if meant is None:
        with pytest.raises(BadPlace):
            parse_address(text)
    else:
        assert parse_address(text).text == meant


async def test_an_agent_without_a_vault_has_no_places(make_home: Callable[[], AgentHome]) -> None:
    home = replace(make_home(), settings=AgentSettings())
    with pytest.raises(VaultMissing, match="has no vault"):
        await open_places(home)
    with pytest.raises(PlaceNotFound, match="no place 'nas'"):
        (await open_places(load_home(home.folder))).get("nas")


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("ada", "is the agent's folder"),
        ("ada/backups", "is inside the agent's folder"),
        (".", "contains the agent's folder"),
        ("vault", "is the vault"),
        ("vault/deep", "is inside the vault"),
        ("second", "is the second place"),
        ("linked", "is inside the agent's folder"),
    ],
)
async def test_a_place_is_a_folder_of_its_own(places: BackupPlaces, tmp_path: Path, where: str, said: str) -> None:
    """In the agent's folder each backup would hold the one before; beside keys it is lost with them."""
    for folder in ("ada/backups", "vault/deep", "second"):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    assert places.home.vault == tmp_path / "vault"
    assert places.home.second == tmp_path / "second"
    address = tmp_path / where
    if where == "linked":
        address = tmp_path / "elsewhere" / ".." / "ada" / "backups"
        (tmp_path / "elsewhere").mkdir()
    with pytest.raises(BadPlace) as caught:
        await places.add(PlaceRequest(name="near", address=str(address)))
    assert said in str(caught.value)
    assert not (tmp_path / where / SENTINEL).exists()
    assert places.read() == ()


@pytest.mark.parametrize(
    ("address", "message", "hint"),
    [
        ("s3://bucket/x", "no places at s3:// addresses", "ssh://user@host/path"),
        ("http://x/y", "no places at http:// addresses", "ssh://user@host/path"),
        ("file:///etc", "no places at file:// addresses", "give the folder itself: /etc"),
        ("/etc/passwd", "/etc/passwd is not a folder", "give a folder"),
        ("/proc", "cannot make files in /proc", "on a disk"),
    ],
)
async def test_what_can_be_no_place_is_said_in_words(
    places: BackupPlaces, address: str, message: str, hint: str
) -> None:
    with pytest.raises(BadPlace) as caught:
        await places.add(PlaceRequest(name="odd", address=address))
    assert message in caught.value.message
    assert hint in caught.value.hint
