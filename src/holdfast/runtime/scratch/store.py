"""A scratch folder and the journal's blobs: keeping the one in the other, and the way back.

`keep` returns the digest of a manifest whose every chunk is durable: chunks first, the manifest
after them, each in commits of its own. What a crash between two of them leaves are blobs that no
record names; they go with the task. A file whose mark was seen before and is settled is not read
again; files are read a batch at a time, so a large one is never in memory whole.

`restore` makes the folder hold exactly what a manifest says: what else is there is removed, only
files that differ are written. It is called while no code or tool of the task runs.

A file that changes while it is read is read again, a few times. After that it is an error, unless
`shared` says that another call of this task is under way: then it is that call's half-written
file, and is kept as it was read; that call's own checkpoint holds it whole.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import NamedTuple, ParamSpec, TypeVar

from holdfast.core.ids import TaskId
from holdfast.errors import ScratchChanging, ScratchRefused, ScratchTooLarge
from holdfast.host import manifest as manifests
from holdfast.host import tree
from holdfast.host.manifest import File, Manifest
from holdfast.host.tree import FileKind, FileMark, FoundFile, Limits
from holdfast.journal.contract import Journal
from holdfast.journal.rules import BLOB_BYTES_MAX

P = ParamSpec("P")
T = TypeVar("T")

TRIES_MAX = 4
LARGE_BYTES = 4 * manifests.CHUNK_BYTES  # worth a short wait, so that it need not be read twice
SETTLE_S = 1.5 * tree.GRAIN_NS / 1e9


class Known(NamedTuple):
    """What a file held when it was last read or written here."""

    mark: FileMark
    chunks: tuple[str, ...]
    at_ns: int


class _Changed(Exception):
    """A file changed while it was read; the text is its path."""


class Store:
    """Keeps and restores one open folder. One call at a time."""

    def __init__(self, *, journal: Journal, task_id: TaskId, root: int, limits: Limits) -> None:
        self._journal = journal
        self._task_id = task_id
        self._root = root
        self._limits = limits
        self._known: dict[str, Known] = {}
        self._last = (b"", "")  # hash of the newest manifest's bytes, and its digest
        self.bytes_read = 0

    async def keep(self, *, shared: bool) -> str:
        """The digest of a manifest of what is there now, durable with all it names. Raises ScratchRefused,
        ScratchTooLarge, ScratchChanging; and what the journal raises where it has no space or time: nothing is lost, it
        may be called again."""
        changed = ""
        for number in range(TRIES_MAX):
            torn = shared and number == TRIES_MAX - 1
            try:
                return await self._put_manifest(await self._keep_once(torn=torn))
            except (tree.Gone, _Changed) as error:
                changed = str(error)
            except OSError as error:
                raise ScratchRefused(f"the scratch folder cannot be read: {error}") from error
        raise ScratchChanging(f"scratch file {changed!r} changed each time Holdfast read it")

    async def restore(self, digest: str) -> None:
        """Make the folder hold what this manifest says. Raises JournalDamaged, OSError."""
        wanted = await load_manifest(self._journal, digest)
        there = await in_thread(tree.scan, self._root, limits=None)
        changed = await in_thread(self._prepare, wanted, there)
        for file in changed:
            await self._write(file)
        await self._settle(changed)

    # keeping

    async def _keep_once(self, *, torn: bool) -> Manifest:
        found = await in_thread(self._scan)
        files = [one for one in found if one.kind is FileKind.FILE]
        new = [one for one in files if not self._is_known(one)]
        now_ns = time.time_ns()
        if any(one.mark.size >= LARGE_BYTES and not tree.is_settled(one.mark, read_ns=now_ns) for one in new):
            await asyncio.sleep(SETTLE_S)
        read = await self._read(new, torn=torn)
        self._known = {one.path: self._known[one.path] for one in files if one.path in self._known}
        chunks = {path: known.chunks for path, known in self._known.items()}
        sizes = {one.path: one.mark.size for one in files}
        chunks |= {path: kept for path, (_, kept) in read.items()}
        sizes |= {path: size for path, (size, _) in read.items()}
        return manifests.made(
            [File(one.path, one.executable, sizes[one.path], chunks[one.path]) for one in files if one.path in chunks],
            [one.path for one in found if one.kind is FileKind.FOLDER],
        )

    def _scan(self) -> list[FoundFile]:
        found = tree.scan(self._root, limits=self._limits)
        device = tree.device_of(self._root)
        tree.check(found, self._limits, device=device)
        return found

    def _is_known(self, one: FoundFile) -> bool:
        known = self._known.get(one.path)
        return known is not None and known.mark == one.mark and tree.is_settled(one.mark, read_ns=known.at_ns)

    async def _read(self, files: Sequence[FoundFile], *, torn: bool) -> dict[str, tuple[int, tuple[str, ...]]]:
        """Size and chunks of each file, stored; without those that went meanwhile."""
        for one in files:
            self._known.pop(one.path, None)
        began_ns = time.time_ns()
        done: dict[str, tuple[int, tuple[str, ...]]] = {}
        chunks: list[str] = []
        size = 0
        with closing(tree.Reader(self._root, files)) as reader:
            while pieces := await in_thread(reader.batch):
                held = [piece.content for piece in pieces if not piece.ends]
                digests = iter(await self._put(held))
                for piece in pieces:
                    file = files[piece.number]
                    if not piece.ends:
                        chunks.append(next(digests))
                        size += len(piece.content)
                        continue
                    if piece.torn and not torn:
                        raise _Changed(file.path)
                    if not piece.torn:
                        self._known[file.path] = Known(file.mark, tuple(chunks), began_ns)
                    if not piece.torn or size:
                        done[file.path] = (size, tuple(chunks))
                    chunks, size = [], 0
        return done

    async def _put(self, contents: Sequence[bytes]) -> list[str]:
        self.bytes_read += sum(map(len, contents))
        return await self._journal.put_blobs(contents, task_id=self._task_id) if contents else []

    async def _put_manifest(self, found: Manifest) -> str:
        raw = manifests.encode(found)
        if len(raw) > BLOB_BYTES_MAX:
            raise ScratchTooLarge(
                "the list of scratch files is too long: there are too many files, or their paths are too long"
            )
        name = hashlib.sha256(raw).digest()
        if self._last[0] != name:
            (digest,) = await self._journal.put_blobs([raw], task_id=self._task_id)
            self._last = (name, digest)
        return self._last[1]

    # restoring

    def _prepare(self, wanted: Manifest, there: Sequence[FoundFile]) -> list[File]:
        """Remove what does not belong, make the folders; the files that are to be written."""
        files = {file.path: file for file in wanted.files}
        folders = wanted.every_folder()
        right = {
            one.path
            for one in there
            if (one.kind is FileKind.FILE and one.path in files)
            or (one.kind is FileKind.FOLDER and one.path in folders)
        }
        wrong = [one for one in there if one.path not in right]
        tops = {one.path for one in wrong if one.kind is FileKind.FOLDER}
        tree.remove(self._root, [one for one in wrong if not tops.intersection(manifests.parents(one.path))])
        for folder in sorted(folders - right):
            tree.make_folder(self._root, folder)
        same = {one.path for one in there if one.path in files and self._holds(one, files)}
        return [file for file in wanted.files if file.path not in same]

    def _holds(self, one: FoundFile, files: dict[str, File]) -> bool:
        """Whether the file there has these very contents; its executable bit is set right."""
        file = files[one.path]
        known = self._known.get(one.path)
        if known is None or not self._is_known(one) or known.chunks != file.chunks:
            return False
        if one.links != 1 or one.mark.size != file.size:
            return False
        if one.executable != file.executable:
            now = tree.set_executable(self._root, one.path, executable=file.executable)
            self._known[one.path] = known._replace(mark=now.mark)
        return True

    async def _write(self, file: File) -> None:
        self._known.pop(file.path, None)
        new = await in_thread(tree.NewFile, self._root, file.path)
        try:
            for chunk in file.chunks:
                content = await self._journal.get_blob(chunk)
                await in_thread(new.write, content)
            made = await in_thread(new.done, executable=file.executable)
        finally:
            new.close()
        if made.mark.size != file.size:
            raise manifests.damaged(f"{file.path!r} has {made.mark.size} bytes, not {file.size}")
        self._known[file.path] = Known(made.mark, file.chunks, time.time_ns())

    async def _settle(self, written: Sequence[File]) -> None:
        """Large files that were just written need not be read at the next checkpoint."""
        large = [file.path for file in written if file.size >= LARGE_BYTES]
        if not large:
            return
        await asyncio.sleep(SETTLE_S)
        now_ns = time.time_ns()
        for path in large:
            one, known = tree.find_at(self._root, path), self._known[path]
            if one is not None and one.mark == known.mark:
                self._known[path] = known._replace(at_ns=now_ns)


async def load_manifest(journal: Journal, digest: str) -> Manifest:
    """Raises BlobNotFound, JournalDamaged."""
    return manifests.decode(await journal.get_blob(digest))


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Beside the event loop; a cancel waits for the end, so that no thread outlives its folder."""
    work = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        while not work.done():
            try:
                await asyncio.wait((work,))
            except asyncio.CancelledError:
                continue  # one is raised below for all of them
        if not work.cancelled():
            work.exception()  # seen: the cancel goes before it
        raise
