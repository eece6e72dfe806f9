"""`holdfast demo`, run as a person runs it; what it claims is compared with the far ends' files."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import AsyncMock

import pytest

from holdfast.cli.main import main
from holdfast.demo import story
from holdfast.demo.instances import TakenOver
from holdfast.demo.machine import Return
from holdfast.demo.region import Continued
from holdfast.demo.relays import Answered
from holdfast.demo.story import Doubts, Report, Verdict, Wanted
from holdfast.downstream.ledger import Page
from holdfast_proofs.support.transcript import find_missing, shape

PROJECT = Path(__file__).parents[2]
DEMO = (sys.executable, "-m", "holdfast", "demo")
DEMO_S_MAX = 400


def run_demo(*options: str, temp: Path) -> subprocess.CompletedProcess[str]:
    """The demo, with a temp folder of its own, so that what it leaves is seen."""
    return subprocess.run(
        [*DEMO, *options],
        env={**os.environ, "TMPDIR": str(temp)},
        cwd=temp,
        text=True,
        capture_output=True,
        timeout=DEMO_S_MAX,
    )


def effects_in(file: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_it_tells_the_story_and_the_far_ends_have_it_in_their_files(
    tmp_path: Path, measured: Callable[[str], None]
) -> None:
    """Four trips paid and mailed once, three more asked for by mail, one letter, by the log each far end
    wrote; and what it prints is what the README shows: every line there, other numbers, this order."""
    folder = tmp_path / "trip"
    began = time.monotonic()
    done = run_demo("--folder", str(folder), temp=tmp_path)
    measured(f"demo: {time.monotonic() - began:.1f} s in all")
    assert (done.returncode, done.stderr) == (0, "")
    for name, count in (("payment", 7), ("mail", 4), ("letter", 1)):
        assert len(effects_in(folder / f"{name}.jsonl")) == count
    assert "is killed inside the payment" in done.stdout
    assert "sent again, same effect key" in done.stdout
    assert "arrives and changes nothing" in done.stdout
    assert "charges 7   mails 4   letters 1   duplicates 0   lost 0" in done.stdout
    assert "answers to each request: LIS to OSL 1, OSL to ROM 1, ROM to BER 1" in done.stdout
    assert "relays lost 1   messages lost 0   messages handled twice 0" in done.stdout
    assert "same id yes   memory kept yes" in done.stdout
    assert re.search(r"to the other's step \d+\.\d s   memory merged yes", done.stdout)
    assert "Every promise held.\n" in done.stdout
    report = next((folder / "ada" / "drills").glob("*.json"))
    assert main(["drill", "verify", str(report), "--log", str(folder / "ada" / "kel.jsonl")]) == 0
    found = json.loads(report.read_bytes())["report"]
    assert (found["verdict"], found["environment"]) == ("pass with findings", "isolated")
    rto, rpo = found["results"]["rto"]["actual_s"], found["results"]["rpo"]
    assert rpo["last_acked_commit"]["sequence"] > rpo["last_recovered_commit"]["sequence"], "the payment came after it"
    assert f"recovery time       {rto:g} s (target 300 s: met)" in done.stdout
    assert f"items lost          {rpo['actual_items']} (" in done.stdout
    assert "What the agent survives (`holdfast level show`)\n  level " in done.stdout
    assert "\x1b" not in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["trip"]
    readme = (PROJECT / "README.md").read_text()
    blocks = re.findall(r"^```text\n\$ make demo\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 6
    for block in blocks:
        assert find_missing(shape(block), shape(done.stdout)) is None, done.stdout


def test_without_borg_and_postgresql_it_says_so_in_one_line_and_shows_the_rest(tmp_path: Path) -> None:
    program = "import holdfast.backup.borg.verbs as found\nfound.NAME = 'no-such-borg'\n"
    program += "import holdfast.demo.server as server\nserver.find_programs = lambda: None\n"
    program += "from holdfast.cli.main import main\nimport sys\nsys.exit(main(['demo', '--json']))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=DEMO_S_MAX,
    )
    seen = json.loads(done.stdout)
    assert (done.stdout.count("\n"), done.stderr) == (1, "")
    assert (done.returncode, seen["held"], seen["charges"], seen["kills"]) == (0, True, 1, 2)
    assert [seen[name] for name in ("duplicates", "lost", "strays", "parked")] == [0, 0, 0, 0]
    assert 0 < seen["takeover_s"] <= seen["resume_s"] < seen["seconds"]
    assert (seen["identity_same"], seen["restore_s"], seen["region_resume_s"], seen["broken"]) == (None, None, None, [])
    assert [seen[name] for name in ("level", "rto_s", "rpo_items", "drill")] == [None] * 4
    assert "borg" in seen["left_out"]["3"].lower()
    assert "no PostgreSQL on this machine" in seen["left_out"]["4"]
    assert "borg" in seen["left_out"]["5"].lower()
    assert "no PostgreSQL on this machine" in seen["left_out"]["6"]
    empty = ("mail_lost", "mail_twice", "relays_lost", "instance_takeover_s", "memory_merged")
    assert [seen[name] for name in empty] == [None] * 5
    assert list(tmp_path.iterdir()) == []


def test_it_plays_only_in_a_new_or_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("")
    done = run_demo("--folder", str(tmp_path), temp=tmp_path)
    assert done.returncode == 2
    assert "is not empty" in done.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda one: one.name)
def test_a_demo_that_is_broken_off_takes_all_with_it(tmp_path: Path, number: signal.Signals) -> None:
    """Ended in the middle of a scene, it leaves neither a process nor a file."""
    demo = subprocess.Popen(
        DEMO,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert demo.stdout is not None
    for line in demo.stdout:
        if "is killed inside the payment" in line:
            break
    children = descendants(demo.pid)
    assert len(children) >= 3
    if number is signal.SIGINT:  # Ctrl-C reaches the whole group of the terminal
        os.killpg(demo.pid, number)
    else:
        demo.send_signal(number)
    _, said = demo.communicate(timeout=DEMO_S_MAX)
    assert (demo.returncode, said) == (130, "")
    wait_gone(children)
    assert list(tmp_path.iterdir()) == []


def test_a_killed_demo_leaves_no_process(tmp_path: Path) -> None:
    """Far ends and workers see that their parent is gone."""
    demo = subprocess.Popen(DEMO, env={**os.environ, "TMPDIR": str(tmp_path)}, stdout=subprocess.PIPE, text=True)
    assert demo.stdout is not None
    for line in demo.stdout:
        if "accepted: confirm_visa" in line:
            break
    children = descendants(demo.pid)
    demo.kill()
    demo.communicate(timeout=DEMO_S_MAX)
    wait_gone(children)


SCENE = """
import asyncio, sys
from pathlib import Path
from holdfast.cli.demo import _Printed
from holdfast.demo.{module} import {scene}
from holdfast.demo.stage import setting

async def main():
    async with setting(Path(sys.argv[1]), _Printed(False)) as stage:
        print(await {scene}(stage))

asyncio.run(main())
"""
HOSTS = SCENE.format(module="region", scene="cut_off_host")
RELAYS = SCENE.format(module="relays", scene="lose_relay")


# Three far ends; and two hosts, the server and its own processes, or three relays.
@pytest.mark.parametrize(
    ("scene", "line"),
    [(HOSTS, "does not reach it"), (RELAYS, "each with a key and a disk of its own")],
    ids=["hosts", "relays"],
)
def test_killed_within_a_scene_it_leaves_no_process(scene: str, line: str, tmp_path: Path) -> None:
    """Hosts, relays and the PostgreSQL server see that their parent is gone."""
    demo = subprocess.Popen([sys.executable, "-c", scene, tmp_path], stdout=subprocess.PIPE, text=True)
    assert demo.stdout is not None
    assert any(line in said for said in demo.stdout)
    children = descendants(demo.pid)
    demo.kill()
    demo.communicate(timeout=DEMO_S_MAX)
    assert len(children) >= 6
    wait_gone(children)


def test_without_the_server_of_relays_the_scene_is_left_out(tmp_path: Path) -> None:
    program = "import holdfast.demo.relays as relays\nrelays.find_spec = lambda name: None\n" + RELAYS
    done = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True, timeout=DEMO_S_MAX)
    assert "missing=\"the package uvicorn is missing (pip install 'holdfast[relay]')\"" in done.stdout
    assert (done.returncode, done.stderr) == (0, "")


def test_where_the_kernel_gives_no_network_the_scene_is_left_out(tmp_path: Path) -> None:
    """The hosts' program finds, first of all, a module that refuses as such a kernel does."""
    (tmp_path / "sitecustomize.py").write_text(
        "import holdfast.host.hardening as h\ndef refuse(): raise OSError(1, 'Operation not permitted')\n"
        "h.unshare_network = refuse\n"
    )
    (tmp_path / "demo").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", HOSTS, tmp_path / "demo"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=DEMO_S_MAX,
    )
    assert "missing='the kernel refuses a network of its own: Operation not permitted'" in done.stdout
    assert (done.returncode, done.stderr) == (0, "")


def test_a_broken_promise_is_an_exit_code(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The same run, judged by books in which the payment service had charged twice."""
    honest = story.judge
    left_out = AsyncMock(return_value=Return(missing="not for this test"))
    monkeypatch.setattr(story, "lose_machine", left_out)
    monkeypatch.setattr(story, "cut_off_host", AsyncMock(return_value=Continued(missing="not for this test")))
    unread = Answered(mail_lost=1, mail_twice=2, relays_lost=1)
    monkeypatch.setattr(story, "lose_relay", AsyncMock(return_value=unread))
    apart = TakenOver(takeover_s=2.1, memory_merged=False)
    monkeypatch.setattr(story, "lose_instance", AsyncMock(return_value=apart))

    def doctored(wanted: tuple[Wanted, ...], ledgers: dict[str, Page], doubts: Doubts, *, back: story.Back) -> Verdict:
        payment = ledgers["payment"]
        twice = Page(
            kind="payment",
            effects=payment.effects * 2,
            requests=payment.requests,
            by_key={},
            by_reference={},
            by_base={},
            duplicates=0,
        )
        return honest(wanted, {**ledgers, "payment": twice}, doubts, back=(False, *back[1:]))

    monkeypatch.setattr(story, "judge", doctored)
    assert main(["demo", "--json"]) == 1
    seen = json.loads(capsys.readouterr().out)
    assert (seen["held"], seen["charges"], seen["duplicates"]) == (False, 2, 1)
    unkept = ("the same agent", "1 messages got no answer", "2 messages were handled or answered twice", "one memory")
    for promise in unkept:
        assert any(promise in one for one in seen["broken"])
    assert [seen[name] for name in ("mail_lost", "mail_twice", "relays_lost")] == [1, 2, 1]


def test_people_are_told_which_promise_broke() -> None:
    from holdfast.cli.demo import summary

    broken = Verdict(charges=2, mails=1, letters=1, duplicates=1, lost=0, strays=0, broken=("nothing twice: 1",))
    report = Report(
        verdict=broken,
        parked=0,
        asked=1,
        settled=1,
        kills=2,
        takeover_s=0.3,
        resume_s=0.4,
        identity_same=True,
        memory_kept=True,
        restore_s=2.0,
        region_resume_s=2.1,
        mail_lost=0,
        mail_twice=0,
        relays_lost=1,
        instance_takeover_s=2.1,
        memory_merged=True,
        report=None,
        left_out={},
        seconds=3.0,
        journal=None,
    )
    lines = summary(report)
    assert "BROKEN  nothing twice: 1" in lines
    assert "Every promise held." not in lines
    left_out = {"3": "no Borg", "4": "no PostgreSQL"}
    without = summary(replace(report, verdict=replace(report.verdict, broken=()), left_out=left_out, restore_s=None))
    assert without[-1].splitlines() == [
        "4 of 6 scenes held.",
        "Scene 3 was left out: run `holdfast doctor --install-borg`, then the demo again.",
        "Scene 4 was left out: no PostgreSQL.",
    ]


def descendants(pid: int) -> set[int]:
    """Every living process that comes from this one, by the kernel's own list."""
    found: set[int] = set()
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            child = int(entry.parent.name)
            found |= {child, *descendants(child)}
    return found


def wait_gone(pids: set[int]) -> None:
    end = time.monotonic() + 20
    while left := {pid for pid in pids if is_running(pid)}:
        assert time.monotonic() < end, f"still there: {left}"
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
