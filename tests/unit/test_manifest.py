"""A manifest has one form, and what can be decoded can be written below a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import JournalDamaged
from holdfast.host.manifest import CHUNK_BYTES, File, Manifest, decode, encode, find_bad_name, find_twin, made, parents

A, B = "a" * 64, "b" * 64

NAMES = st.text(min_size=1, max_size=6).filter(lambda name: not find_bad_name(name))
PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)


@st.composite
def trees(draw: st.DrawFn) -> Manifest:
    """Files and folders that can lie in one folder together."""
    files: list[str] = []
    folders: list[str] = []
    for path in draw(st.lists(PATHS, max_size=8, unique=True)):
        above = {one for known in (*files, *folders) for one in parents(known)}
        clash = path in above or path in folders or set(parents(path)) & set(files)
        if clash or find_twin((*files, *folders, path)):
            continue
        (files if draw(st.booleans()) else folders).append(path)
    return made(
        [
            File(path, draw(st.booleans()), size, (A,) * -(-size // CHUNK_BYTES))
            for path in files
            for size in (draw(st.sampled_from((0, 1, CHUNK_BYTES, 3 * CHUNK_BYTES + 1))),)
        ],
        folders,
    )


@given(trees())
def test_a_manifest_comes_back_as_it_was(tree: Manifest) -> None:
    assert decode(encode(tree)) == tree


@given(st.lists(PATHS, max_size=6, unique=True), st.lists(PATHS, max_size=6, unique=True))
def test_whatever_is_decoded_has_no_two_meanings(files: list[str], folders: list[str]) -> None:
    """Either refused, or a tree in which each path is one thing."""
    raw = encode(Manifest(files=tuple(File(path, False, 0, ()) for path in files), folders=tuple(folders)))
    try:
        tree = decode(raw)
    except JournalDamaged:
        return
    paths = [*(file.path for file in tree.files), *tree.folders]
    assert len(set(paths)) == len(paths)
    assert not tree.every_folder() & {file.path for file in tree.files}


def body(**changes: Any) -> bytes:  # Any: whatever a damaged manifest may hold
    whole = {"format": 1, "files": [["a/b", False, 3, [A]]], "folders": ["c"], **changes}
    return json.dumps(whole, separators=(",", ":"), ensure_ascii=False).encode()


def test_the_body_that_the_cases_change_is_a_manifest() -> None:
    assert decode(body()).files[0].path == "a/b"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"null",
        b"[]",
        body(format=2),
        body(more=1),
        body() + b" ",
        body(files=[["../a", False, 0, []]]),
        body(files=[["/a", False, 0, []]]),
        body(files=[["a//b", False, 0, []]]),
        body(files=[["a/./b", False, 0, []]]),
        body(files=[["", False, 0, []]]),
        body(files=[["a\\u0000b", False, 0, []]]).replace(b"\\\\u", b"\\u"),
        body(files=[["x" * 256, False, 0, []]]),
        body(files=[["/".join(["x" * 200] * 30), False, 0, []]]),
        body(files=[["a", False, 0, []], ["a", False, 0, []]]),
        body(files=[["b", False, 0, []], ["a", False, 0, []]]),
        body(files=[["a", False, 0, []], ["a/b", False, 0, []]]),
        body(files=[["A", False, 0, []], ["a", False, 0, []]]),
        body(files=[["A/x", False, 0, []], ["a/y", False, 0, []]]),
        body(files=[["e\u0301", False, 0, []], ["\u00e9", False, 0, []]]),
        body(files=[["c", False, 0, []]]),
        body(files=[["c/d", False, 0, []]]),
        body(files=[["a", False, -1, []]]),
        body(files=[["a", False, 1, []]]),
        body(files=[["a", False, 1, [A, B]]]),
        body(files=[["a", False, 1, ["A" * 64]]]),
        body(files=[["a", False, 1, ["a" * 63]]]),
        body(files=[["a", 1, 0, []]]),
        body(files=[["a", False, 0, [], 1]]),
        body(files=[["a", False, 1.5, [A]]]),
        body(folders=["c", "c"]),
        body(folders=["d", "c"]),
        body(folders=["c", "c/d"]),
        b'{"files":[],"format":1,"folders":[]}',
        b'{"format":1,"files":[["\\ud800",false,0,[]]],"folders":[]}',
    ],
)
def test_what_nobody_has_encoded_is_refused(raw: bytes) -> None:
    with pytest.raises(JournalDamaged):
        decode(raw)


def test_folders_that_hold_something_are_named_by_it() -> None:
    tree = made([File("a/b/c", False, 0, ())], ["a", "a/b", "d", "d/e"])
    assert tree.folders == ("d/e",)
    assert tree.every_folder() == {"a", "a/b", "d", "d/e"}


def test_the_vector_of_the_format_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "formats" / "scratch.md").read_text()
    vector = json.loads(page.partition("```json\n")[2].partition("```")[0])
    tree = decode(vector["manifest"].encode())
    assert [file.path for file in tree.files] == vector["files"]
    assert sorted(tree.every_folder()) == vector["folders"]
