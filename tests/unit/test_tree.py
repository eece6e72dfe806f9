"""What lies in a scratch folder is seen without following a link, and refused by its name."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import ScratchRefused, ScratchTooLarge
from holdfast.host import tree
from holdfast.host.tree import FileKind, FileMark, FoundFile, Limits

SMALL = Limits(files=5, bytes=100, file_bytes=60, depth=3, name_bytes=20)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "files"
    made.mkdir()
    return made


@pytest.fixture
def root(folder: Path) -> Iterator[int]:
    fd = tree.open_folder(str(folder))
    yield fd
    os.close(fd)


def look(root: int, limits: Limits = SMALL) -> list[FoundFile]:
    found = tree.scan(root, limits=limits)
    tree.check(found, limits, device=tree.device_of(root))
    return found


def test_files_and_folders_are_found_each_before_what_it_holds(folder: Path, root: int) -> None:
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "a" / "c").write_text("12345")
    (folder / "run").write_text("")
    (folder / "run").chmod(0o700)
    assert [(one.path, one.kind) for one in look(root)] == [
        ("a", FileKind.FOLDER),
        ("a/b", FileKind.FOLDER),
        ("a/c", FileKind.FILE),
        ("run", FileKind.FILE),
    ]
    assert [one.mark.size for one in look(root) if one.kind is FileKind.FILE] == [5, 0]
    assert [one.path for one in look(root) if one.executable and one.kind is FileKind.FILE] == ["run"]


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        where = os.getcwd()
        os.chdir(path.parent)  # the name of a socket is short
        try:
            listener.bind(path.name)
        finally:
            os.chdir(where)


def _link_to_file(path: Path) -> None:
    path.symlink_to("/etc/passwd")


def _link_to_folder(path: Path) -> None:
    path.symlink_to(".")


def _long_name(path: Path) -> None:
    path.with_name("n" * 21).write_text("")


def _link_outside(path: Path) -> None:
    outside = path.parent.parent / "outside"
    outside.write_text("secret")
    path.hardlink_to(outside)


def _not_utf8(path: Path) -> None:
    with open(os.fsencode(path.parent) + b"/n\xff", "wb"):
        pass


def _twin(path: Path) -> None:
    path.write_text("")
    path.with_name("BAD").write_text("")


def _two_forms(path: Path) -> None:
    path.with_name("e\u0301").write_text("")
    path.with_name("\u00e9").write_text("")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (_link_to_file, "'bad' is a symbolic link"),
        (_link_to_folder, "'bad' is a symbolic link"),
        (os.mkfifo, "'bad' is a named pipe"),
        (_socket, "'bad' is a socket"),
        (_link_outside, "'bad' is a hard link"),
        (_not_utf8, "not UTF-8"),
        (_twin, "'BAD' and 'bad' would be one file"),
        (_two_forms, "would be one file"),
        (_long_name, "at most 20 are allowed"),
    ],
)
def test_what_cannot_be_restored_is_refused_with_its_path(
    folder: Path, root: int, make: Callable[[Path], object], said: str
) -> None:
    make(folder / "bad")
    with pytest.raises(ScratchRefused, match=said) as error:
        look(root)
    assert error.value.code == "scratch-refused"


def _many(folder: Path) -> None:
    for number in range(6):
        (folder / str(number)).mkdir()


def _big(folder: Path) -> None:
    (folder / "big").write_bytes(bytes(61))


def _deep(folder: Path) -> None:
    (folder / "1" / "2" / "3" / "4").mkdir(parents=True)


def _heavy(folder: Path) -> None:
    for name in "ab":
        (folder / name).write_bytes(bytes(55))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (_many, "more than 5 files"),
        (_deep, "'1/2/3/4' is nested deeper than 3"),
        (_heavy, "110 bytes"),
        (_big, "'big' has 61 bytes"),
    ],
)
def test_too_much_is_refused(folder: Path, root: int, make: Callable[[Path], object], said: str) -> None:
    make(folder)
    with pytest.raises(ScratchTooLarge, match=said):
        look(root)


def test_limits_are_met_exactly(folder: Path, root: int) -> None:
    (folder / "1" / "2" / "3").mkdir(parents=True)
    (folder / "1" / "2" / "3" / "x").write_bytes(bytes(60))
    (folder / ("n" * 20)).write_bytes(bytes(40))
    assert len(look(root)) == 5


def test_a_second_name_inside_is_a_file_of_its_own(folder: Path, root: int) -> None:
    (folder / "one").write_text("same")
    (folder / "two").hardlink_to(folder / "one")
    assert [one.path for one in look(root)] == ["one", "two"]


def test_another_file_system_is_refused() -> None:
    found = FoundFile("mounted", FileKind.FOLDER, FileMark(2, 1, 0, 0, 0), True, 1)
    with pytest.raises(ScratchRefused, match="'mounted' is on another file system"):
        tree.check([found], SMALL, device=1)


def test_a_folder_that_is_swapped_for_a_link_leads_nowhere(folder: Path, root: int) -> None:
    """Between the look and the read, the write, the removal: what is outside stays as it is."""
    outside = folder.parent / "outside"
    (outside / "inner").mkdir(parents=True)
    (outside / "secret").write_text("secret")
    (folder / "d").mkdir()
    (folder / "d" / "secret").write_text("public")
    found = look(root)
    (folder / "d" / "secret").unlink()
    (folder / "d").rmdir()
    (folder / "d").symlink_to(outside)
    pieces = tree.Reader(root, [one for one in found if one.kind is FileKind.FILE]).batch()
    assert [(piece.content, piece.torn) for piece in pieces] == [(b"", True)]
    with pytest.raises(OSError, match=r"[Nn]ot a directory|[Tt]oo many"):
        tree.NewFile(root, "d/new")
    with pytest.raises(OSError, match=r"[Nn]ot a directory|[Tt]oo many"):
        tree.make_folder(root, "d/new")
    assert tree.find_at(root, "d/secret") is None
    tree.remove(root, [one for one in tree.scan(root, limits=None) if one.path == "d"])
    assert not os.path.lexists(folder / "d")
    assert (outside / "secret").read_text() == "secret"
    assert sorted(path.name for path in outside.iterdir()) == ["inner", "secret"]


def test_a_file_is_written_anew_and_not_through_what_lies_there(folder: Path, root: int) -> None:
    outside = folder.parent / "outside"
    outside.write_text("kept")
    (folder / "hard").hardlink_to(outside)
    (folder / "soft").symlink_to(outside)
    for name in ("hard", "soft"):
        new = tree.NewFile(root, name)
        new.write(b"new")
        new.done(executable=False)
        new.close()
        assert (folder / name).read_text() == "new"
        assert (folder / name).stat().st_mode & 0o777 == 0o600
    assert outside.read_text() == "kept"


def test_a_folder_that_nothing_can_be_taken_out_of_is_removed(folder: Path, root: int) -> None:
    (folder / "cache" / "inner").mkdir(parents=True)
    (folder / "cache" / "inner" / "file").write_text("x")
    for one in ("cache/inner", "cache"):
        (folder / one).chmod(0o555)
    tree.empty(root)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("changed_ns", "read_ns", "settled"),
    [
        (5_000_000_001, 5_020_000_001, False),
        (5_000_000_001, 5_020_000_002, True),
        (5_000_000_000, 5_020_000_002, False),  # whole seconds: perhaps that is all it keeps
        (5_000_000_000, 7_000_000_001, True),
        (9_000_000_001, 5_000_000_000, False),  # the clock was set back since
    ],
)
def test_a_mark_counts_only_a_grain_after_its_times(changed_ns: int, read_ns: int, settled: bool) -> None:
    mark = FileMark(1, 1, 1, changed_ns, changed_ns)
    assert tree.is_settled(mark, read_ns=read_ns) is settled


def test_what_goes_during_the_look_is_not_there(folder: Path, root: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("gone", "kept"):
        (folder / name).write_text("")
    whole = os.stat

    def stat(name: str, **options: Any) -> os.stat_result:
        if name == "gone":
            (folder / name).unlink(missing_ok=True)
        return whole(name, **options)

    monkeypatch.setattr(tree.os, "stat", stat)
    assert [one.path for one in look(root)] == ["kept"]


@pytest.mark.parametrize(("error", "raised"), [(NotADirectoryError, tree.Gone), (PermissionError, ScratchRefused)])
def test_a_folder_that_cannot_be_entered(
    folder: Path, root: int, monkeypatch: pytest.MonkeyPatch, error: type[OSError], raised: type[Exception]
) -> None:
    def refuse(name: str, *, at: int | None = None) -> int:
        raise error(name)

    (folder / "d").mkdir()
    monkeypatch.setattr(tree, "open_folder", refuse)
    with pytest.raises(raised, match="d"):
        look(root)


def test_a_path_that_is_too_long_is_refused() -> None:
    found = FoundFile("/".join(["x" * 200] * 21), FileKind.FILE, FileMark(1, 1, 0, 0, 0), False, 1)
    with pytest.raises(ScratchTooLarge, match=r"the path of scratch file .* has more than 4,000 bytes"):
        tree.check([found], Limits(), device=1)


def test_a_file_that_its_owner_cannot_read_is_refused(folder: Path, root: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object, **_options: object) -> int:
        raise PermissionError("no")

    (folder / "a").write_text("a")
    found = look(root)
    monkeypatch.setattr(tree.os, "open", refuse)
    with pytest.raises(ScratchRefused, match="no permission to read the scratch file 'a'"):
        tree.Reader(root, found).batch()


def test_a_file_that_became_a_pipe_is_not_waited_for(folder: Path, root: int) -> None:
    (folder / "a").write_text("a")
    found = look(root)
    (folder / "a").unlink()
    os.mkfifo(folder / "a")
    (piece,) = tree.Reader(root, found).batch()
    assert (piece.content, piece.ends, piece.torn) == (b"", True, True)
