"""Whatever a person does wrong: one clear message, a hint, a page, and nothing lost."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

from holdfast.app.open import open as open_journal
from holdfast.core.clock import SystemClock
from holdfast.demo.server import is_hidden
from holdfast.host.sqlite import open_db
from holdfast_proofs.support.command_line import WAIT_S, Commands, command_line, environment

DAY_MS = 86_400_000
NOBODY = 65_534
NO_TASK = "7ZZZZZZZZZZZZZZZZZZZZZZZZZ"


def accept(hf: Commands, task: str = "hello", request: str = "ada") -> str:
    words = ("submit", "app.py:tasks", request, "--task", task, "--no-follow")
    return hf(*words).out.strip()


def refused(hf: Commands, *words: str | bytes, code: int, error: str) -> str:
    """The command is refused with this error, a page and no traceback; what it said."""
    plain = [word for word in words if isinstance(word, str)]
    heavy = len(plain) < len(words) or "--journal" in plain or plain[:1] in (["submit"], ["worker"])
    done = hf(*words, code=code) if heavy or not plain else hf.look(*plain, code=code)
    assert done.out == ""
    message, *rest = done.err.splitlines()
    assert message.startswith("error: ")
    assert rest[-1] == f"see: holdfast explain {error}"
    assert "Traceback" not in done.err
    return done.err


def test_an_unknown_task(hf: Commands) -> None:
    accept(hf)
    for words in ("task show", "task cancel", "task retry", "effect show", "approval grant"):
        place = NO_TASK if words.startswith("task") else f"{NO_TASK}/1"
        done = hf.look(*words.split(), place, code=3)
        assert f"no task {NO_TASK}" in done.err
        assert "holdfast task list" in done.err
    assert hf("task", "show", NO_TASK, "--json", code=3).error == {
        "code": "task-not-found",
        "message": f"no task {NO_TASK} in this journal",
        "hint": "`holdfast task list` shows the tasks of this journal",
        "page": "docs/reference/errors.md#task-not-found",
        "explain": "holdfast explain task-not-found",
        "exit_code": 3,
    }


@pytest.mark.parametrize("name", ["", "no-id", "ZZZZ", "01J9ZK/", "/1", "\u202e", "5' OR 1=1"])
def test_words_that_name_nothing(hf: Commands, name: str) -> None:
    task_id = accept(hf)
    for words in (("task", "show", name), ("effect", "show", name)):
        done = hf.look(*words, code=2)
        assert "bad-reference" in done.err
        assert "\u202e" not in done.err
    assert "bad-reference" in hf.look("effect", "show", f"{task_id}/0", code=2).err
    assert "step-not-found" in hf.look("effect", "show", f"{task_id}/9", code=3).err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("tsak",), "did you mean `holdfast task`?"),
        (
            ("--home", "ada", "doctor"),
            "before the command\nhint: write the command first: `holdfast doctor --home ...`",
        ),
        (("task",), "VERB"),
        (("task", "lst"), "did you mean `list`?"),
        (("task", "list", "--limit", "0"), "between 1 and"),
        (("task", "list", "--limit", "x"), "--limit"),
        (("task", "list", "--state", "stuck"), "stuck"),
        (("task", "list", "--jsn"), "unknown option --jsn\nhint: did you mean `--json`?"),
        (("task", "list", "--state", "parkd"), "did you mean `parked`?"),
        (("recover", "--dryrun"), "unknown option --dryrun\nhint: did you mean `--dry-run`?"),
        (("recover", "--plac", "X"), "did you mean `--place`?"),
        (("identity", "show", "hunter2"), "unexpected argument\n"),
        (("init", "ada", "--passphrase=hunter2"), "unknown option --passphrase\n"),
        (("worker",), "APP"),
        (("worker", "a:b", "--health-port", "70000"), "between 0 and 65535"),
        (("submit", "app.py:only", "x", "--run", "--no-follow"), "--no-follow"),
        (("submit", "app.py:only", "x", "--timeout", "-1"), "--timeout"),
        (("submit", "app.py:only", "x", "--timeout", "nan"), "--timeout"),
        (("doctor", "--journal", ""), "--journal is empty"),
        (("doctor", "--journal", "postgresql://ada:x@db/agents"), "has a password in it"),
        (("doctor", "--journal", "mysql://db/agents"), "cannot be at mysql://"),
    ],
)
def test_wrong_words(hf: Commands, words: tuple[str, ...], said: str) -> None:
    message = refused(hf, *words, code=2, error="bad-input")
    assert said in message
    assert "hint:" in message
    assert "hunter2" not in message


@pytest.mark.parametrize(
    ("app", "said"),
    [
        ("missing.py:tasks", "there is no file missing.py"),
        ("no_such_module:tasks", "no_such_module"),
        ("app.py:nothing", "it has: "),
        ("app.py", "is not an app"),
        (":", "is not an app"),
        ("broken.py:tasks", "failed on import: SyntaxError"),
        ("raising.py:tasks", "failed on import: ZeroDivisionError"),
        ("app.py:HERE", "not a list of tasks"),
        ("app.py:tasks", "has several tasks"),
    ],
)
def test_a_wrong_app(hf: Commands, app: str, said: str) -> None:
    (hf.folder / "broken.py").write_text("def")
    (hf.folder / "raising.py").write_text("1 / 0")
    assert said in refused(hf, "submit", app, "{}", code=2, error="bad-app")
    assert not (hf.folder / "journal.db").exists()


@pytest.mark.parametrize(
    ("request_text", "said"),
    [
        ('{"value": 1', "REQUEST is not JSON"),
        ('{"value": 1, "value": 2}', "'value' is given twice"),
        ('{"value": NaN}', "NaN is not a JSON number"),
        ('{"value": 1, "wrong": 2}', "unexpected keyword argument 'wrong'"),
        ("{}", "missing a required argument: 'value'"),
        ("@missing.json", "cannot be read: No such file"),
        ("@.", "cannot be read: Is a directory"),
    ],
)
def test_a_wrong_request(hf: Commands, request_text: str, said: str) -> None:
    words = ("submit", "app.py:tasks", request_text, "--task", "echo")
    assert said in refused(hf, *words, code=2, error="bad-input")
    assert not (hf.folder / "journal.db").exists()


@pytest.mark.parametrize(
    ("request_text", "said"),
    [
        ('{"value": "\\ud800"}', "lone surrogate"),
        ('{"value": 1e999}', "inf is not a JSON number"),
        ('{"value": 99999999999999999999999}', "more than 64 bits"),
        ('{"value": ' + "[" * 300 + "]" * 300 + "}", "nested deeper"),
    ],
)
def test_a_value_that_cannot_be_kept(hf: Commands, request_text: str, said: str) -> None:
    words = ("submit", "app.py:tasks", request_text, "--task", "echo")
    assert said in refused(hf, *words, code=2, error="bad-value")
    assert hf.look("task", "list", "--json").json["tasks"] == []


def test_a_hundred_megabytes(hf: Commands) -> None:
    """Refused from a file without reading it, from a pipe without reading it all."""
    with open(hf.folder / "big", "wb") as file:
        file.truncate(100 * 1024 * 1024)
    echo = ("submit", "app.py:tasks", "--task", "echo")
    message = refused(hf, *echo, "@big", code=2, error="too-large")
    assert "104,857,600 bytes" in message
    piped = subprocess.run(
        command_line(*echo, "-"),
        cwd=hf.folder,
        env=environment(hf.folder),
        timeout=WAIT_S,
        input=b"x" * (100 * 1024 * 1024),
        capture_output=True,
    )
    assert piped.returncode == 2
    assert b"too-large" in piped.stderr
    (hf.folder / "big").write_text("x" * (17 * 1024 * 1024))
    assert "17,825,8" in refused(hf, *echo, "@big", code=2, error="too-large")
    assert hf.look("task", "list", "--json").json["tasks"] == []


def test_nul_and_bytes_that_are_no_text(hf: Commands) -> None:
    assert "not UTF-8 text" in refused(hf, "submit", "app.py:only", b"\xff\xfe", code=2, error="bad-input")
    assert "not UTF-8 text" in refused(hf, "task", "list", "--journal", b"/tmp/\xff", code=2, error="bad-input")
    (hf.folder / "latin").write_bytes(b"caf\xe9")
    words = ("submit", "app.py:tasks", "@latin", "--task", "echo")
    assert "not UTF-8 text (byte 3)" in refused(hf, *words, code=2, error="bad-input")
    assert "NUL" in hf.look("task", "show", "a\0b", code=2).err
    done = hf("submit", "app.py:tasks", '{"value": "a\\u0000b"}', "--task", "echo", "--run")
    assert done.json == "a\0b", "NUL inside a value is text like any other"


def test_a_tool_that_raises(hf: Commands) -> None:
    done = hf("submit", "app.py:tasks", "{}", "--task", "fails", "--run", code=9)
    assert "raises raised ValueError: no such flight" in done.err
    shown = hf.look("task", "list", "--json").json["tasks"][0]
    page = hf.look("task", "show", shown["task_id"]).out
    assert "ValueError: no such flight" in page


def test_results_that_are_not_json(hf: Commands) -> None:
    """The effect took place and is never repeated; that its result is lost is said."""
    done = hf("submit", "app.py:tasks", "{}", "--task", "loses_result", "--run", code=9)
    assert "odd took effect, but its result is lost" in done.err
    task_id = hf.look("task", "list", "--json").json["tasks"][0]["task_id"]
    assert "took effect, but its result is lost" in hf.look("task", "show", task_id).out
    hf.look("task", "retry", task_id)
    hf("submit", "app.py:only", "x", "--run")
    assert (hf.folder / "odd").read_text() == "\n"
    done = hf("submit", "app.py:tasks", "{}", "--task", "returns_odd", "--run", code=9)
    assert "set is not a JSON value" in done.err


def test_ctrl_c_leaves_the_task_alone(hf: Commands) -> None:
    process = subprocess.Popen(
        command_line("submit", "app.py:only", "ada"),
        cwd=hf.folder,
        env=environment(hf.folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    while "task queued" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=WAIT_S)
    assert (process.returncode, out) == (130, "")
    assert "the task stays in the journal, and any worker continues it: `holdfast task show" in err
    assert "Traceback" not in err
    assert hf.look("task", "list", "--json").json["tasks"][0]["state"] == "queued"


# the journal and its place


def damaged(hf: Commands) -> None:
    """Turn over a bit in the newest record's sealed body, where only the chain can see it."""
    db = open_db(str(hf.folder / "journal.db"), flags=apsw.SQLITE_OPEN_READWRITE)
    row = db.execute("SELECT n, body FROM record ORDER BY n DESC LIMIT 1").fetchone()
    assert row is not None
    n, body = row
    changed = bytes((body[0] ^ 1,)) + body[1:]
    triggers = db.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'").fetchall()
    for name, _ in triggers:
        db.execute(f"DROP TRIGGER {name}")
    db.execute("UPDATE record SET body = ? WHERE n = ?", (changed, n))
    for _, sql in triggers:
        db.execute(sql)
    db.close()


def test_a_changed_record(hf: Commands) -> None:
    task_id = accept(hf)
    damaged(hf)
    message = refused(hf, "task", "show", task_id, code=6, error="journal-damaged")
    assert "was changed" in message
    found = hf("doctor", "--deep", "--json", code=6).json
    assert [one["level"] for one in found["findings"] if one["check"] == "records"] == ["damage"]
    done = hf("submit", "app.py:tasks", "x", "--task", "hello", "--run")
    assert done.json["sent"], "other tasks are unharmed"
    assert hf.look("task", "show", task_id, code=6)
    states = {one["task_id"]: one["state"] for one in hf.look("task", "list", "--json").json["tasks"]}
    assert states[task_id] == "parked"
    assert task_id in hf.look("effect", "list").err


def test_a_file_that_is_torn(hf: Commands) -> None:
    for _ in range(3):
        accept(hf)
    path = hf.folder / "journal.db"
    raw = bytearray(path.read_bytes())
    for at in range(4_096, len(raw), 512):
        raw[at : at + 200] = b"\xaa" * len(raw[at : at + 200])
    path.write_bytes(raw)
    for words in (("task", "list"), ("submit", "app.py:only", "x"), ("worker", "app.py:only")):
        assert "damaged" in refused_line(hf, *words, code=6)
    assert hf("doctor", code=6).out.count("damage ") == 1
    assert path.read_bytes() == raw, "a damaged file is left as it is"


def refused_line(hf: Commands, *words: str, code: int) -> str:
    err = hf(*words, code=code).err
    return next(line for line in err.splitlines() if line.startswith("error: "))


@pytest.mark.parametrize(
    ("contents", "error"),
    [(b"", "not-a-journal"), (b"hello", "not-a-journal"), (b"SQLite format 3\0" + bytes(200), "not-a-journal")],
)
def test_a_file_that_is_no_journal(hf: Commands, contents: bytes, error: str) -> None:
    accept(hf)
    path = hf.folder / "journal.db"
    path.write_bytes(contents)
    for words in (("task", "list"), ("submit", "app.py:only", "x", "--run")):
        refused(hf, *words, code=6, error=error)
    assert error in hf("doctor", code=6).out
    assert path.read_bytes() == contents


def test_a_journal_of_a_newer_holdfast(hf: Commands) -> None:
    accept(hf)
    path = hf.folder / "journal.db"
    raw = bytearray(path.read_bytes())
    raw[60:64] = (99).to_bytes(4, "big")
    path.write_bytes(raw)
    assert "schema 99" in refused(hf, "task", "list", code=6, error="journal-newer")


def test_an_older_copy_is_refused(hf: Commands) -> None:
    """The copy from before the payment: nothing is run, so nothing is paid twice."""
    words = ("submit", "app.py:only", "ada", "--request-id", "pay-1", "--run")
    accept(hf, "echo", "x")
    shutil.copy(hf.folder / "journal.db", hf.folder / "old.db")
    hf(*words)
    for name in ("journal.db-wal", "journal.db-shm"):
        (hf.folder / name).unlink(missing_ok=True)
    shutil.copy(hf.folder / "old.db", hf.folder / "journal.db")
    for again in (words, ("worker", "app.py:only"), ("task", "list")):
        assert "the file is an older copy" in refused_line(hf, *again, code=6)
    assert "journal-older-copy" in hf("doctor", code=6).out
    assert len((hf.folder / "sent").read_text().split()) == 1


def test_keys_that_are_missing_or_wrong(hf: Commands) -> None:
    accept(hf)
    keys = hf.folder / "keys.json"
    kept = keys.read_bytes()
    keys.unlink()
    refused(hf, "task", "list", code=6, error="keys-missing")
    assert "keys-missing" in hf("doctor", code=6).out
    assert not keys.exists(), "new keys for an old journal would only hide the loss"
    for wrong in (b"{}", b"\xff", kept.replace(b"a", b"b"), b'{"format": 2}'):
        keys.write_bytes(wrong)
        keys.chmod(0o600)
        refused(hf, "task", "list", code=6, error="keys-wrong")
    keys.write_bytes(kept)
    hf("task", "list")


def test_files_that_others_could_read(hf: Commands) -> None:
    accept(hf)
    (hf.folder / "keys.json").chmod(0o644)
    assert "chmod 600" in refused(hf, "task", "list", code=7, error="mode-too-wide")
    assert "chmod 600" in hf("doctor", code=1).out
    (hf.folder / "keys.json").chmod(0o600)
    (hf.folder / "link.db").symlink_to(hf.folder / "journal.db")
    words = ("task", "list", "--journal", "link.db")
    assert "real path" in refused(hf, *words, code=7, error="symlink-refused")


def test_no_journal_here(hf: Commands) -> None:
    for words in (("task", "list"), ("effect", "list"), ("approval", "list"), ("todo",)):
        assert "holdfast worker APP" in refused(hf, *words, code=6, error="not-a-journal")
    assert "there is no journal" in hf("doctor", code=1).out
    assert sorted(os.listdir(hf.folder)) == ["app.py"]


class Ahead(SystemClock):
    """A clock that runs a day ahead: afterwards the machine's own looks set back."""

    __slots__ = ()

    def wall_ms(self) -> int:
        return super().wall_ms() + DAY_MS


async def test_a_clock_set_back_a_day(hf: Commands) -> None:
    async with open_journal(hf.folder, serve=False, clock=Ahead()) as journal:
        await journal.submit("echo", value=1)
    found = hf("doctor", code=1).out
    assert re.search(r"is 86,[34]\d\d s behind", found)
    assert "timedatectl" in found
    done = hf("submit", "app.py:only", "ada", "--run")
    assert done.json["sent"] == {"to": "ada"}
    assert "warning: clock-behind" in done.err
    shown = hf("task", "list", "--json").json["tasks"]
    assert len({one["created"][:10] for one in shown}) == 1, "recorded time never falls"


# Imports first: an ordinary user may not be able to read where this interpreter is installed.
AS_NOBODY = f"""
import contextlib, difflib, importlib, importlib.util, io, json, os, pkgutil, sys, traceback
import importlib.readers
import encodings.ascii, encodings.idna, encodings.latin_1
import holdfast.app, holdfast.cli, holdfast.core, holdfast.journal.sqlite, holdfast.runtime
for name in ("core", "journal", "journal.sqlite", "runtime", "app", "cli"):
    room = importlib.import_module("holdfast." + name)
    for one in pkgutil.iter_modules(room.__path__, room.__name__ + "."):
        if not one.ispkg and "demo" not in one.name and "process" not in one.name:
            importlib.import_module(one.name)
from holdfast.cli.main import main
os.chdir(sys.argv[1])
if os.geteuid() == 0:
    for name in (".", *os.listdir()):
        os.chown(name, {NOBODY}, {NOBODY})
    for top, folders, files in os.walk("instance"):
        for name in (".", *folders, *files):
            os.chown(os.path.join(top, name), {NOBODY}, {NOBODY})
    os.setgroups([])
    os.setresgid({NOBODY}, {NOBODY}, {NOBODY})
    os.setresuid({NOBODY}, {NOBODY}, {NOBODY})
def tried(*words):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(list(words))
    return [code, *err.getvalue().strip().splitlines()[-1:]]
found = {{}}
os.chmod(".", 0o500)
found["new"] = tried("submit", "app.py:only", "ada", "--run", "--journal", "new.db")
found["old"] = tried("submit", "app.py:only", "ada", "--run")
found["list"] = tried("task", "list")
found["doctor"] = tried("doctor")[0]
os.chmod(".", 0o700)
found["again"] = tried("submit", "app.py:only", "bob", "--run", "--json")
print(json.dumps(found))
"""


@pytest.mark.skipif(os.geteuid() == 0 and is_hidden(), reason="other users cannot enter this clone")
def test_a_read_only_folder_as_an_ordinary_user(hf: Commands, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Root may write everywhere, so this is tried as nobody; with the right it goes on."""
    accept(hf)
    place = tmp_path_factory.mktemp("nobody") / "agent"
    shutil.copytree(hf.folder, place)
    for folder in place.parents:
        if os.geteuid() == 0 and folder.stat().st_mode & 0o777 == 0o700:
            folder.chmod(0o711)
    done = subprocess.run([sys.executable, "-c", AS_NOBODY, str(place)], capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 0, done.stderr
    see = "see: holdfast explain read-only"
    assert json.loads(done.stdout) == {"new": [7, see], "old": [7, see], "list": [7, see], "doctor": 1, "again": [0]}


FULL = """
import json, os, subprocess, sys, time
from pathlib import Path
from holdfast.cli.main import main
from holdfast_proofs.support.command_line import Commands, ask
folder = Path(sys.argv[1]) / "agent"
folder.mkdir(mode=0o700)
(folder / "app.py").write_text(Path(sys.argv[2]).read_text())
hf = Commands(folder, main)
found = {}
worker = hf.worker("--health-port", "0")
port = worker.wait_event("health")["port"]
worker.wait_event("session-begun")
found["before"] = ask(port, "/healthz").status
task_id = hf("submit", "app.py:tasks", "{}", "--task", "fills", "--no-follow").out.strip()
trouble = worker.wait_event("trouble")
found["trouble"] = trouble["code"]
found["hint"] = trouble["hint"]
page = ask(port, "/healthz")
found["full"] = [page.status, json.loads(page.text)["reasons"]]
shown = hf.look("task", "show", task_id, "--json").json
found["task"] = [shown["state"], [step["state"] for step in shown["steps"]]]
found["sent"] = (folder / "sent").exists()
found["doctor"] = "warning  space" in hf.look("doctor", code=1).out
os.unlink(folder / "filler")
while worker.wait_event("run-ended")["task_id"] != task_id:
    pass
found["after"] = hf.look("task", "show", task_id, "--json").json["state"]
found["count"] = len((folder / "sent").read_text().split())
end = time.monotonic() + 60
hf("submit", "app.py:tasks", "{}", "--task", "leaves_it_full", "--no-follow")
while ask(port, "/healthz").status != 503 and time.monotonic() < end:
    time.sleep(0.05)  # it is the next renewal that meets the full disk
os.unlink(folder / "filler")
while ask(port, "/healthz").status != 200 and time.monotonic() < end:
    time.sleep(0.05)
found["idle"] = ask(port, "/healthz").status
found["end"] = worker.stop()
worker.close()
print(json.dumps(found))
"""


def test_a_full_disk(tmp_path: Path) -> None:
    """On a small file system of its own: no step begins, health says so, nothing is lost."""
    ways = [one for one in (["unshare", "-m"], ["unshare", "-r", "-m"]) if _mounts(one, tmp_path)]
    if not ways:
        pytest.skip("this user may not mount a file system, not even in a namespace of its own")
    # Small enough that the reserve, once given up, is too little to begin new steps with.
    mounted = 'mount -t tmpfs -o size=12m,mode=0700 tmpfs "$1" && exec "$2" -c "$3" "$1" "$4"'
    sample = str(Path(__file__).parent / "sample_app.py")
    done = subprocess.run(
        [*ways[0], "sh", "-c", mounted, "sh", str(tmp_path), sys.executable, FULL, sample],
        capture_output=True,
        text=True,
        timeout=2 * WAIT_S,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert "free some space" in found.pop("hint")
    status, reasons = found.pop("full")
    assert (status, len(reasons)) == (503, 1)
    assert "no space is left" in reasons[0]
    assert found == {
        "before": 200,
        "trouble": "journal-full",
        "task": ["running", ["succeeded"]],
        "sent": False,
        "doctor": True,
        "after": "succeeded",
        "count": 1,
        "idle": 200,
        "end": 0,
    }


def _mounts(how: list[str], place: Path) -> bool:
    if not shutil.which("unshare"):
        return False
    probe = [*how, "sh", "-c", 'mount -t tmpfs tmpfs "$1"', "sh", str(place)]
    return subprocess.run(probe, capture_output=True).returncode == 0


def test_a_file_without_keys_that_is_no_journal(hf: Commands, tmp_path: Path) -> None:
    """Also where it has no keys beside it."""
    odd = tmp_path / "odd"
    odd.mkdir(mode=0o700)
    (odd / "passwd").touch(mode=0o600)
    (odd / "passwd").write_text("root:x:0:0:root:/root:/bin/bash\n" * 40)
    done = hf("task", "list", "--journal", str(odd / "passwd"), code=6)
    assert "is not a journal" in done.err


@pytest.mark.parametrize(
    ("script", "code", "said"),
    [
        ('exec "$@" >&-', 0, ""),
        ('exec "$@" <&- >&- 2>&-', 0, ""),
        (
            'mkdir gone && cd gone && rmdir ../gone && exec env -u HOLDFAST_JOURNAL "$@"',
            2,
            "the current folder was removed",
        ),
    ],
)
def test_odd_places_to_start_from(hf: Commands, script: str, code: int, said: str) -> None:
    accept(hf)
    words = ["sh", "-c", script, "sh", *command_line("task", "list")]
    done = subprocess.run(words, cwd=hf.folder, env=environment(hf.folder), capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert "internal" not in done.stderr


def test_wrong_words_as_json(hf: Commands) -> None:
    for words in (("task", "lst"), ("task", "list", "--stat", "x"), ("nothing",), ("submit",)):
        error = hf(*words, "--json", code=2).error
        assert (error["code"], error["exit_code"]) == ("bad-input", 2)
