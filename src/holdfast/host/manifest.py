"""A manifest: what lies in a folder, exactly and no more, as a value.

It names every file (path, executable or not, size, digests of its chunks) and every folder that
is empty; a folder that holds something is named by what it holds. One tree has one encoding:
paths are sorted, nothing is optional. So two equal trees have the same bytes, and the digest of
the bytes stands for the tree.

`decode` is a border. What it gives back can be written below a folder without a look at its
paths: none is absolute, none climbs, no two fall together where case or the form of an accent
does not count, and nothing lies below a file. Pure: no file is touched here.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from itertools import pairwise

import msgspec

from holdfast.core.decoding import json_decoder
from holdfast.errors import JournalDamaged

FORMAT = 1
CHUNK_BYTES = 1 << 20
NAME_BYTES_MAX = 255  # what Linux and macOS file systems hold
PATH_BYTES_MAX = 4_000  # below the kernel's own limit for what a tool is given
_DIGEST = re.compile(r"[0-9a-f]{64}")


class File(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    path: str
    executable: bool
    size: int
    chunks: tuple[str, ...]


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: int = FORMAT
    files: tuple[File, ...] = ()
    folders: tuple[str, ...] = ()  # the empty ones

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    def every_folder(self) -> set[str]:
        """All folders below the root: empty ones, and those above something."""
        found = set(self.folders)
        for path in (*(file.path for file in self.files), *self.folders):
            found.update(parents(path))
        return found


def made(files: Iterable[File], folders: Iterable[str]) -> Manifest:
    """The manifest of these files and folders; those that hold something need no name."""
    kept = tuple(sorted(files, key=lambda file: file.path))
    named = set(folders)
    above = {one for path in (*(f.path for f in kept), *named) for one in parents(path)}
    return Manifest(files=kept, folders=tuple(sorted(named - above)))


_encode = msgspec.json.Encoder().encode
_decode = json_decoder(Manifest).decode


def encode(manifest: Manifest) -> bytes:
    return _encode(manifest)


def decode(raw: bytes) -> Manifest:
    """The manifest in these bytes. Raises JournalDamaged for what `encode` cannot have made."""
    try:
        manifest = _decode(raw)
        why = find_wrong(manifest)
        if not why and _encode(manifest) != raw:
            why = "it is not in canonical form"
    except (ValueError, RecursionError) as error:
        raise damaged(str(error)) from error
    if why:
        raise damaged(why)
    return manifest


def damaged(why: str) -> JournalDamaged:
    return JournalDamaged(f"Holdfast cannot use a manifest of scratch files: {why}")


def find_wrong(manifest: Manifest) -> str:
    """What no tree can have; empty where nothing is wrong."""
    if manifest.format != FORMAT:
        return f"format {manifest.format}"
    paths = [file.path for file in manifest.files]
    for named in (paths, list(manifest.folders)):
        if any(before >= after for before, after in pairwise(named)):
            return "paths out of order"
    for file in manifest.files:
        if file.size < 0 or len(file.chunks) != -(-file.size // CHUNK_BYTES):
            return f"{file.path!r}: {len(file.chunks)} chunks of {file.size} bytes"
        if not all(_DIGEST.fullmatch(chunk) for chunk in file.chunks):
            return f"{file.path!r}: a chunk is not named by its digest"
    for path in (*paths, *manifest.folders):
        why = "it is too long" if len(path) > PATH_BYTES_MAX else ""
        for name in path.split("/"):
            why = why or find_bad_name(name)
        if why:
            return f"{path!r}: {why}"
    return _find_clash(paths, manifest.folders)


def find_bad_name(name: str, *, bytes_max: int = NAME_BYTES_MAX) -> str:
    """Why this cannot be the name of a file or folder; empty where it can."""
    if name in ("", ".", ".."):
        return "that is not a valid name"
    if "/" in name or "\0" in name:
        return "a name may not contain '/' or NUL"
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return "its name is not UTF-8"
    if size > bytes_max:
        return f"its name has {size} bytes; at most {bytes_max} are allowed"
    return ""


def folded(name: str) -> str:
    """Equal for names that some file systems take for one."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def find_twin(paths: Iterable[str]) -> tuple[str, str] | None:
    """Two paths, of files or folders, that some file systems take for one."""
    known: dict[tuple[str, str], str] = {}
    for path in paths:
        for one in (*parents(path), path):
            above, _, name = one.rpartition("/")
            twin = known.setdefault((above, folded(name)), one)
            if twin != one:
                return twin, one
    return None


def parents(path: str) -> list[str]:
    """The folders above it, from the top down: `a`, `a/b` for `a/b/c`."""
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def _find_clash(files: list[str], folders: tuple[str, ...]) -> str:
    above = {one for path in (*files, *folders) for one in parents(path)}
    both = (set(files) & above) | (set(files) & set(folders))
    if both:
        return f"{min(both)!r} is a file and a folder"
    if filled := set(folders) & above:
        return f"{min(filled)!r} is not empty"
    twin = find_twin((*files, *folders))
    return f"{twin[0]!r} and {twin[1]!r} would be the same file on some file systems" if twin else ""
