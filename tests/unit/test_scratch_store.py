"""Any folder is kept and restored byte by byte, and what has not changed is not read again."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.ids import TaskId
from holdfast.errors import JournalDamaged, ScratchChanging, ScratchRefused, ScratchTooLarge
from holdfast.host import manifest as manifests
from holdfast.host import tree
from holdfast.host.manifest import CHUNK_BYTES, find_bad_name, find_twin, parents
from holdfast.host.tree import Limits
from holdfast.journal.contract import Journal, Submission
from holdfast.runtime.scratch import store as scratch_store
from holdfast.runtime.scratch.store import Store, load_manifest
from holdfast.testing.clocks import ManualClock, SeededEntropy
from holdfast_proofs.memory_journal.journal import MemoryJournal, MemoryStore

TASK = TaskId("0" * 26)
Tree = dict[str, tuple[bytes, bool] | None]  # contents and executable bit; None: a folder


async def new_journal() -> MemoryJournal:
    journal = MemoryStore().connect(ManualClock(), SeededEntropy(1))
    await journal.submit(Submission(task_id=TASK, name="t", args={}, args_fingerprint=b"f"))
    return journal


class Box:
    """A folder, and a store on it."""

    def __init__(self, folder: Path, journal: Journal, limits: Limits | None = None) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.fd = tree.open_folder(str(folder))
        self.store = Store(journal=journal, task_id=TASK, root=self.fd, limits=limits or Limits())

    def fill(self, wanted: Tree) -> None:
        for path, held in wanted.items():
            where = self.folder / path
            if held is None:
                where.mkdir(parents=True, exist_ok=True)
            else:
                where.parent.mkdir(parents=True, exist_ok=True)
                where.write_bytes(held[0])
                where.chmod(0o700 if held[1] else 0o600)

    def held(self) -> Tree:
        """Files, and the folders that are empty."""
        found: Tree = {}
        for above, folders, files in os.walk(self.folder):
            here = Path(above)
            for name in files:
                status = (here / name).lstat()
                content = (here / name).read_bytes()
                found[str((here / name).relative_to(self.folder))] = (content, bool(status.st_mode & 0o100))
            if not folders and not files and here != self.folder:
                found[str(here.relative_to(self.folder))] = None
        return found

    def age(self) -> None:
        """As if what is there had been written long ago."""
        for path in self.folder.rglob("*"):
            os.utime(path, (1, 1), follow_symlinks=False)

    def close(self) -> None:
        os.close(self.fd)


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    made = Box(tmp_path / "files", asyncio.run(new_journal()))
    yield made
    made.close()


CHUNKY = [fill * (CHUNK_BYTES + extra) for fill in (b"x", b"y") for extra in (-1, 0, 1)]
CONTENTS = st.binary(max_size=40) | st.sampled_from(CHUNKY)
NAMES = st.text(min_size=1, max_size=3).filter(lambda name: not find_bad_name(name))
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    found: Tree = {}
    for path in draw(st.lists(PATHS, max_size=6, unique=True)):
        above = {one for known in found for one in parents(known)}
        below_file = any(found.get(one) is not None for one in parents(path))
        if path in above or below_file or find_twin((*found, path)):
            continue
        for one in parents(path):
            found.pop(one, None)  # a folder that is empty no more
        is_file = draw(st.booleans())
        found[path] = (draw(CONTENTS), draw(st.booleans())) if is_file else None
    return found


@settings(max_examples=20, deadline=None)
@given(trees(), trees())
def test_a_folder_is_restored_over_whatever_lies_there(one: Tree, other: Tree) -> None:
    """Any tree becomes any other, byte by byte, and its manifest is the same again."""

    async def run(place: Path) -> None:
        journal = await new_journal()
        first, second = Box(place / "1", journal), Box(place / "2", journal)
        first.fill(one)
        second.fill(other)
        digests = [await box.store.keep(shared=False) for box in (first, second)]
        (second.folder / "leftover").mkdir(exist_ok=True)
        (second.folder / "leftover" / "link").symlink_to("/etc")
        await second.store.restore(digests[0])
        assert second.held() == one
        assert await second.store.keep(shared=False) == digests[0]
        await second.store.restore(digests[1])
        assert second.held() == other
        for box in (first, second):
            box.close()

    with tempfile.TemporaryDirectory() as place:
        asyncio.run(run(Path(place)))


async def test_what_has_not_changed_is_not_read_again(box: Box) -> None:
    box.fill({"a": (b"12345", False), "b/c": (b"678", True)})
    await asyncio.sleep(2 * tree.GRAIN_NS / 1e9)
    first = await box.store.keep(shared=False)
    assert box.store.bytes_read == 8
    assert await box.store.keep(shared=False) == first
    assert box.store.bytes_read == 8
    (box.folder / "b" / "c").write_bytes(b"6789")
    assert await box.store.keep(shared=False) != first
    assert box.store.bytes_read == 12


@pytest.mark.parametrize("size", [1, scratch_store.LARGE_BYTES])
async def test_a_change_in_the_tick_of_the_checkpoint_is_seen(
    box: Box, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Same size, inode and times, as on a kernel with slow ticks: not taken for what was read."""
    whole = tree.seen

    def coarse(path: str, status: os.stat_result) -> tree.FoundFile:
        found = whole(path, status)
        changed_ns = found.mark.changed_ns // 10_000_000 * 10_000_000 + 1
        return found._replace(mark=found.mark._replace(changed_ns=changed_ns, status_ns=changed_ns))

    monkeypatch.setattr(tree, "seen", coarse)
    count = 20 if size == 1 else 3
    digests: set[str] = set()
    with (box.folder / "f").open("wb", buffering=0) as file:
        for number in range(count):
            file.seek(0)
            file.write(bytes((number,)) * size)
            digests.add(await box.store.keep(shared=False))
    assert len(digests) == count


async def test_a_large_file_that_was_just_written_is_read_once(box: Box) -> None:
    box.fill({"f": (bytes(scratch_store.LARGE_BYTES), False)})
    digest = await box.store.keep(shared=False)
    await box.store.keep(shared=False)
    assert box.store.bytes_read == scratch_store.LARGE_BYTES
    (box.folder / "f").unlink()
    await box.store.restore(digest)
    assert await box.store.keep(shared=False) == digest
    assert box.store.bytes_read == scratch_store.LARGE_BYTES


async def test_only_files_that_differ_are_written(box: Box) -> None:
    box.fill({"same": (b"1", False), "other": (b"2", False), "mode": (b"3", False)})
    await asyncio.sleep(2 * tree.GRAIN_NS / 1e9)
    digest = await box.store.keep(shared=False)
    held_open = [path.open("rb") for path in box.folder.iterdir()]  # no inode is used again
    inodes = {path.name: path.stat().st_ino for path in box.folder.iterdir()}
    (box.folder / "other").write_bytes(b"9")
    (box.folder / "mode").chmod(0o700)
    (box.folder / "new").mkdir()
    await asyncio.sleep(2 * tree.GRAIN_NS / 1e9)
    await box.store.keep(shared=False)
    await box.store.restore(digest)
    assert box.held() == {"same": (b"1", False), "other": (b"2", False), "mode": (b"3", False)}
    now = {path.name: path.stat().st_ino for path in box.folder.iterdir()}
    assert [name for name in now if now[name] != inodes[name]] == ["other"]
    for file in held_open:
        file.close()


async def test_a_file_that_never_rests_is_an_error(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounded; but where another call of the task is under way it may be that call's."""
    box.fill({"busy": (b"123", False), "still": (b"4", False)})
    whole = scratch_store.tree.Reader.batch

    def while_written(reader: scratch_store.tree.Reader) -> object:
        with (box.folder / "busy").open("ab") as file:
            file.write(b"+")
        return whole(reader)

    monkeypatch.setattr(scratch_store.tree.Reader, "batch", while_written)
    with pytest.raises(ScratchChanging, match="'busy' changed each time"):
        await box.store.keep(shared=False)
    digest = await box.store.keep(shared=True)
    monkeypatch.undo()
    await box.store.restore(digest)
    held = box.held()
    assert held["still"] == (b"4", False)
    assert held["busy"] is not None
    assert held["busy"][0].startswith(b"123+")


async def test_a_file_that_goes_while_it_is_read_is_looked_for_again(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    box.fill({"gone": (b"1", False), "kept": (b"2", False)})
    whole = scratch_store.tree.Reader.batch

    def without(reader: scratch_store.tree.Reader) -> object:
        (box.folder / "gone").unlink(missing_ok=True)
        return whole(reader)

    monkeypatch.setattr(scratch_store.tree.Reader, "batch", without)
    await box.store.restore(await box.store.keep(shared=False))
    assert box.held() == {"kept": (b"2", False)}


async def test_a_file_that_is_never_there_when_it_is_read_is_left_out(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    box.fill({"kept": (b"2", False)})
    scan, batch = tree.scan, scratch_store.tree.Reader.batch

    def with_it(root: int, *, limits: Limits | None) -> list[tree.FoundFile]:
        (box.folder / "now and then").write_text("1")
        return scan(root, limits=limits)

    def without(reader: scratch_store.tree.Reader) -> object:
        (box.folder / "now and then").unlink(missing_ok=True)
        return batch(reader)

    monkeypatch.setattr(tree, "scan", with_it)
    monkeypatch.setattr(scratch_store.tree.Reader, "batch", without)
    with pytest.raises(ScratchChanging, match="'now and then'"):
        await box.store.keep(shared=False)
    found = await load_manifest(box.store._journal, await box.store.keep(shared=True))
    assert [file.path for file in found.files] == ["kept"]


@pytest.mark.parametrize(
    ("error", "raised"), [(tree.Gone("a"), ScratchChanging), (OSError(5, "Input/output error"), ScratchRefused)]
)
async def test_a_folder_that_cannot_be_looked_at(
    box: Box, monkeypatch: pytest.MonkeyPatch, error: Exception, raised: type[Exception]
) -> None:
    def fail(_root: int, *, limits: Limits | None) -> list[tree.FoundFile]:
        raise error

    monkeypatch.setattr(tree, "scan", fail)
    with pytest.raises(raised):
        await box.store.keep(shared=False)


async def test_a_list_that_fits_no_blob_is_refused(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch_store, "BLOB_BYTES_MAX", 10)
    with pytest.raises(ScratchTooLarge, match="the list of scratch files is too long"):
        await box.store.keep(shared=False)


async def test_a_file_with_a_second_name_is_written_anew(box: Box) -> None:
    box.fill({"a": (b"1", False)})
    await asyncio.sleep(2 * tree.GRAIN_NS / 1e9)
    digest = await box.store.keep(shared=False)
    (box.folder / "b").hardlink_to(box.folder / "a")
    await asyncio.sleep(2 * tree.GRAIN_NS / 1e9)
    await box.store.keep(shared=False)
    await box.store.restore(digest)
    assert box.held() == {"a": (b"1", False)}


async def test_no_thread_outlives_a_cancelled_checkpoint(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder's descriptor may be closed after it."""
    entered, leave = threading.Event(), threading.Event()

    def slow(_root: int, *, limits: Limits | None) -> list[tree.FoundFile]:
        entered.set()
        leave.wait(10)
        raise OSError("not seen: the cancel goes before it")

    monkeypatch.setattr(tree, "scan", slow)
    keeping = asyncio.ensure_future(box.store.keep(shared=False))
    await asyncio.to_thread(entered.wait, 10)
    for _ in range(2):
        keeping.cancel()
        await asyncio.wait((keeping,), timeout=0.02)
        assert not keeping.done()
    leave.set()
    with pytest.raises(asyncio.CancelledError):
        await keeping


async def test_equal_chunks_are_kept_once(tmp_path: Path) -> None:
    store = MemoryStore()
    journal = store.connect(ManualClock(), SeededEntropy(1))
    await journal.submit(Submission(task_id=TASK, name="t", args={}, args_fingerprint=b"f"))
    box = Box(tmp_path / "files", journal)
    box.fill({name: (bytes(3 * CHUNK_BYTES), False) for name in "abc"})
    await box.store.keep(shared=False)
    assert len(store.blobs) == 2  # the chunk and the manifest
    box.close()


async def test_a_manifest_that_lies_is_damage(box: Box) -> None:
    box.fill({"a": (b"123", False)})
    found = await load_manifest(box.store._journal, await box.store.keep(shared=False))
    chunk = found.files[0].chunks[0]
    lie = manifests.made([manifests.File("a", False, 4, (chunk,))], [])
    (digest,) = await box.store._journal.put_blobs([manifests.encode(lie)], task_id=TASK)
    with pytest.raises(JournalDamaged, match="'a' has 3 bytes, not 4"):
        await box.store.restore(digest)


async def test_limits_are_those_of_the_store(tmp_path: Path) -> None:
    box = Box(tmp_path / "files", await new_journal(), Limits(file_bytes=2))
    box.fill({"a": (b"123", False)})
    with pytest.raises(ScratchTooLarge, match="'a' has 3 bytes"):
        await box.store.keep(shared=False)
    box.close()


MEASURE = Path(__file__).parents[1] / "runtime" / "programs" / "scratch_memory.py"


def test_a_large_file_is_never_whole_in_memory(tmp_path: Path) -> None:
    """72 MiB through the embedded journal and back, in less than 64 MiB more than before."""
    done = subprocess.run(
        [sys.executable, str(MEASURE), str(tmp_path), "72"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) < 64, done.stdout
