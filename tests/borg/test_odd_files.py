"""A pipe, a device or a link in place of a file at a place: refused at once, and the other places are served."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from holdfast.backup.places.backup_places import BackupPlaces, PlaceRequest
from holdfast.backup.places.companion_files import find_sources, read_companions
from holdfast.backup.places.places import SENTINEL, Place, check_there
from holdfast.errors import PlaceMissing, RepositoryDamaged

T = TypeVar("T")
ODD: dict[str, Callable[[Path], None]] = {
    "pipe": os.mkfifo,
    "endless device": lambda path: path.symlink_to("/dev/zero"),
    "link": lambda path: path.symlink_to("/etc/passwd"),
}


@pytest.fixture(params=list(ODD))
def put_odd(request: pytest.FixtureRequest) -> Callable[[Path], None]:
    def put(path: Path) -> None:
        path.unlink(missing_ok=True)
        ODD[request.param](path)

    return put


@contextmanager
def replaced(path: Path, put_odd: Callable[[Path], None]) -> Generator[None]:
    """The file is as before in the end."""
    kept = path.read_bytes() if path.exists() else None
    put_odd(path)
    yield
    path.unlink()
    if kept is not None:
        path.touch(0o600)
        path.write_bytes(kept)


async def soon(work: Awaitable[T]) -> T:
    """What hangs fails the test instead of the whole run."""
    async with asyncio.timeout(60):
        return await work


async def two(places: BackupPlaces, tmp_path: Path) -> tuple[Place, Place]:
    for name in ("nas", "usb"):
        (tmp_path / name).mkdir()
        await places.add(PlaceRequest(name=name, address=str(tmp_path / name)))
    nas, usb = places.read()
    return nas, usb


async def test_companion_files_are_refused_and_the_other_place_gets_its_own(
    places: BackupPlaces, tmp_path: Path, put_odd: Callable[[Path], None]
) -> None:
    nas, usb = await two(places, tmp_path)
    for name in ("heads.jsonl", "kel.jsonl", "escrow.age", "place.json", "keys/usb.key"):
        with replaced(nas.own / name, put_odd):
            (usb.own / "escrow.age").unlink()
            failed = await soon(places.refresh_companions())
            assert list(failed) == ["nas"]
            assert isinstance(failed["nas"], RepositoryDamaged)
            assert name in str(failed["nas"])
            assert (usb.own / "escrow.age").is_file()


async def test_a_recovery_counts_it_as_missing_and_reads_the_rest(
    places: BackupPlaces, tmp_path: Path, put_odd: Callable[[Path], None]
) -> None:
    nas, _ = await two(places, tmp_path)
    put_odd(nas.own / "heads.jsonl")
    found = await soon(find_sources(places.engine, [nas.address, str(tmp_path / "usb")]))
    assert [one.place.name for one in found.found] == ["nas", "usb"]
    assert "heads.jsonl" not in found.found[0].files
    assert "escrow.age" in found.found[0].files


async def test_nothing_odd_in_a_repository_is_given_to_borg(
    places: BackupPlaces, tmp_path: Path, put_odd: Callable[[Path], None]
) -> None:
    nas, _ = await two(places, tmp_path)
    for name in ("config", "README", "data/0/7"):
        with replaced(Path(nas.repository) / name, put_odd):
            with pytest.raises(RepositoryDamaged, match="is a link, a pipe or a device"):
                await soon(places.check("nas"))
            await soon(places.check("usb"))
    await soon(places.check("nas"))


async def test_a_marker_that_is_no_file_is_no_marker(
    places: BackupPlaces, tmp_path: Path, put_odd: Callable[[Path], None]
) -> None:
    nas, _ = await two(places, tmp_path)
    put_odd(tmp_path / "nas" / SENTINEL)
    with pytest.raises(PlaceMissing):
        await soon(asyncio.to_thread(check_there, nas))
    await soon(read_companions(places.engine, nas))
