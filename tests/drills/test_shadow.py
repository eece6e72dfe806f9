"""A shadow cannot reach production. Each attempt is refused; with its guard taken out, the same attempt succeeds."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.errors import ShadowRefused
from holdfast.host import shadow as under_test
from holdfast.host.shadow import ShadowPlan, open_shadow
from holdfast_proofs.shadow_escapes import KINDS, Kind, World, count_reached, guard_out, small_world, tokens

SCRIPT = Path(under_test.__file__).with_name("shadow_init.py")


def code(text: str) -> list[str]:
    return [sys.executable, "-I", "-c", text]


def connects(address: str, family: str = "AF_UNIX") -> list[str]:
    return code(f"import socket; socket.socket(socket.{family}).connect({address})")


SMALL = tuple(one for one in KINDS if one.name != "commands")  # they need a real agent: `make escapes`


@pytest.fixture
def place(tmp_path: Path) -> Iterator[World]:
    with closing(small_world(tmp_path / "production")) as it:
        yield it


@pytest.mark.parametrize("kind", SMALL, ids=lambda one: one.name.replace(" ", "-"))
def test_production_is_out_of_reach(kind: Kind, tmp_path: Path, place: World) -> None:
    """Refused with every guard in place; reached with one taken out, so the guard is what refuses."""
    whole = place.state()
    with tokens():
        assert count_reached(kind, place, tmp_path / "d1", tries=4) == 0
        assert place.state() == whole
        with guard_out(kind, place, tmp_path):
            assert count_reached(kind, place, tmp_path / "d2", most=1) == 1


LIVES = """
import subprocess, sys, time
from pathlib import Path
from holdfast.host.shadow import ShadowPlan, open_shadow
from holdfast_proofs.shadow_escapes import KINDS, Kind, World, count_reached, guard_out, small_world, tokens
with open_shadow(ShadowPlan(folder=Path(sys.argv[1]))) as shadow:
    shadow.start([sys.executable, "-I", "-c", "import time; time.sleep(600)", sys.argv[1]])
    print("started", flush=True)
    time.sleep(600)
"""


def processes_of(folder: Path) -> list[int]:
    found: list[int] = []
    for one in Path("/proc").iterdir():
        try:
            if one.name.isdigit() and str(folder).encode() in (one / "cmdline").read_bytes():
                found.append(int(one.name))
        except OSError:
            continue
    return found


def test_a_killed_drill_leaves_no_process_and_no_mount(tmp_path: Path) -> None:
    """SIGKILL of the drill ends everything in its shadow; only its folder is left."""
    folder = tmp_path / "d"
    drill = subprocess.Popen([sys.executable, "-c", LIVES, str(folder)], stdout=subprocess.PIPE)
    assert drill.stdout is not None
    assert drill.stdout.readline() == b"started\n"
    drill.kill()
    drill.wait()
    drill.stdout.close()
    end = time.monotonic() + 20
    while (left := processes_of(folder)) and time.monotonic() < end:
        time.sleep(0.05)
    assert left == []
    assert str(folder) not in Path("/proc/self/mountinfo").read_text()


def test_a_second_shadow_finds_what_the_first_wrote_but_for_what_is_gone(tmp_path: Path, place: World) -> None:
    """Two machines, one after the other, with what is off the machine in common."""
    before = (place.root / "place-1/one").read_text()
    script = f"mkdir -p {place.root}/new && echo 2 > {place.root}/new/f && echo 2 > {place.root}/place-1/one"
    for gone, look in (((), script), ((place.root / "new",), f"cat {place.root}/place-1/one && ! ls {place.root}/new")):
        with open_shadow(ShadowPlan(folder=tmp_path / "d", gone=gone)) as shadow:
            process = shadow.start(["sh", "-c", look])
            assert process.communicate(timeout=60)[0] in (b"", b"2\n")
            assert process.returncode == 0
    assert (place.root / "place-1/one").read_text() == before


def test_what_is_gone_can_be_made_again_and_renamed(tmp_path: Path, place: World) -> None:
    """A restore makes a folder beside the target and renames it."""
    script = f"mkdir {place.root}/.new && touch {place.root}/.new/f && mv {place.root}/.new {place.root}/ada"
    with open_shadow(ShadowPlan(folder=tmp_path / "d", gone=(place.root / "ada",))) as shadow:
        process = shadow.start(["sh", "-c", f"{script} && ls {place.root}/ada"])
        assert process.communicate(timeout=60)[0] == b"f\n"
    assert (place.root / "ada/one").exists()


RENAMES = """
import sys
from pathlib import Path
from holdfast.host.shadow import ShadowPlan, open_shadow
home = Path(sys.argv[1])
with open_shadow(ShadowPlan(folder=Path(sys.argv[2]), own=(home,), gone=(home / "gone",))) as shadow:
    script = 'mv "$1" "$1.old" && ls "$1.old" && cat "$1.old/inner/one" && rm -rf "$1.old" && mkdir "$1"'
    process = shadow.start(["sh", "-ec", script, "sh", str(home)])
    print(process.communicate(timeout=60)[0].decode(), process.returncode)
"""


def test_a_folder_beside_a_mount_can_be_renamed_and_removed(tmp_path: Path) -> None:
    """Above a mount each folder is a mount of its own, which the kernel keeps in its place."""
    home, disk = tmp_path / "ada", tmp_path / "disk"
    (home / "inner").mkdir(parents=True)
    disk.mkdir()
    (home / "inner" / "one").write_text("1\n")
    (home / "gone").write_text("2\n")
    own = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-rm"]
    run = 'mount -t tmpfs tmpfs "$1" && shift && exec "$@"'
    words = [*own, "sh", "-ec", run, "sh", str(disk), sys.executable, "-c", RENAMES, str(home), str(tmp_path / "d")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("inner\n1\n 0\n", "")
    assert (home / "inner" / "one").exists()


def test_a_far_end_outside_is_reached_inside(tmp_path: Path) -> None:
    with open_shadow(ShadowPlan(folder=tmp_path / "d")) as shadow:
        listening, port = shadow.listen()
        with listening:
            process = shadow.start(connects(repr(("127.0.0.1", port)), "AF_INET"))
            listening.settimeout(20)
            listening.accept()[0].close()
            process.communicate(timeout=60)
    assert process.returncode == 0


def test_files_of_the_drill_appear_where_they_should(tmp_path: Path) -> None:
    (tmp_path / "id").write_text("another machine\n")
    plan = ShadowPlan(folder=tmp_path / "d", copies=((tmp_path / "id", Path("/etc/machine-id")),))
    with open_shadow(plan) as shadow:
        assert shadow.start(["cat", "/etc/machine-id"]).communicate(timeout=60)[0] == b"another machine\n"


def test_a_refusal_of_the_kernel_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = tmp_path / "mutant.py"
    mutant.write_text(SCRIPT.read_text().replace("LIBC.unshare(USER", "LIBC.unshare(-1 & USER << 3 or 1 | USER"))
    monkeypatch.setattr(under_test, "_SCRIPT", str(mutant))
    with pytest.raises(ShadowRefused, match="this machine refuses a shadow"), open_shadow(ShadowPlan(folder=tmp_path)):
        pass
