"""Write the golden files: what one version of Holdfast leaves on a disk, for later ones to open.

Run it with the interpreter of the version that shall have written them, never with a newer one:

    /path/to/old/.venv/bin/python tests/golden/make_golden.py OUT

It uses that version's command line and `holdfast.open` alone, works in a fresh folder of /tmp, and
leaves in OUT: journal.tar.gz, agent.tar.gz, move.tar.gz, kel.jsonl, receipts.jsonl, expected.json.
README.md beside this file says what each of them is. Needs Borg, as `scripts/setup dev` builds it.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
from golden_kit import (
    APP,
    CREDENTIAL,
    CREDENTIAL_TEXT,
    MODEL_KEY,
    PASSPHRASE,
    SECOND,
    TOKEN,
    Commands,
    FarEnd,
    far_ends,
    pack,
    unpack,
    variables,
    wait_until,
)

import holdfast

SETTINGS = """agent = "ada"

[worker]
name = "golden worker"

[retention]
keep_days = 100000
tombstone_days = 100000
"""
DROPPED = {"kind": "drop_reply"}
ENDED = ("succeeded", "failed", "cancelled")
# What a file system gives back empty, and 16 MiB of nothing.
LEFT_OUT = frozenset(("reserve", "log", "model.json", "scratch", "older.db", "journal.db-shm"))


def main() -> None:
    out = Path(sys.argv[1]).absolute()
    out.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="golden-", dir="/tmp"))
    try:
        expected = {
            "holdfast": Commands(work).run("--version").stdout.split()[-1],
            "journal": make_journal(work / "journal", out),
            "agent": make_agent(work / "agent", out),
        }
    finally:
        shutil.rmtree(work)
    (out / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    for path in sorted(out.iterdir()):
        print(f"{path.stat().st_size:>8}  {path.name}")


# the journal


def make_journal(root: Path, out: Path) -> dict[str, Any]:
    root.mkdir(mode=0o700)
    folder = root / "ada"
    folder.mkdir(mode=0o700)
    write_private(folder / "holdfast.toml", SETTINGS)
    with far_ends(root) as ends:
        hf = Commands(root, HOLDFAST_JOURNAL=str(folder / "journal.db"), **variables(ends))
        live_restored(hf, folder)
        hf.json("secret", "set", "billing", "--from-fd", "0", stdin=TOKEN)
        hf.json("secret", "set", "provider", "--from-fd", "0", stdin="sk-golden-0000")
        hf.json("secret", "rotate", "provider", "--from-fd", "0", stdin=MODEL_KEY)
        hf.json("memory", "add", "A person said this", "--to", "MEMORY", "--home", str(folder))
        worker = hf.start("worker", f"{APP}:served", "--lease-ttl", "2")
        try:
            live_well(hf, ends)
            asyncio.run(chat_and_scope(folder / "journal.db", ends))
            requests, messages = die_inside(hf, ends)
        finally:
            os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()
    newest_ms = time.time_ns() // 1_000_000
    pack(out / "journal.tar.gz", root, "ada", leave_out=LEFT_OUT)
    with opened(out / "journal.tar.gz") as hf:  # what is expected is read from an opened copy
        return {**seen_journal(hf), "requests": requests, "messages": messages, "newest_ms": newest_ms}


def live_restored(hf: Commands, folder: Path) -> None:
    """The newest records are lost: an older copy of the file is put back."""
    submit(hf, "mails", {"to": "old@example.org"}, "--request-id", "restored")
    journal = folder / "journal.db"
    shutil.copy2(journal, folder / "older.db")
    words = ("submit", f"{APP}:tasks", '{"to": "old@example.org"}', "--task", "mails", "--request-id", "restored")
    done = hf.run(*words, "--run", "--timeout", "60")
    assert done.returncode == 0, done.stderr
    for name in ("journal.db-wal", "journal.db-shm"):
        (folder / name).unlink(missing_ok=True)
    os.replace(folder / "older.db", journal)
    hf.json("recover", "--journal", str(journal), "--yes")


def live_well(hf: Commands, ends: dict[str, FarEnd]) -> None:
    """Everything but the kill. Far ends lose an answer here and there."""
    ends["PAYMENT"].faults(DROPPED)
    wait_state(hf, submit(hf, "trip", {"who": "Ada"}), "succeeded")
    wait_state(hf, submit(hf, "fails", {}), "failed")
    wait_state(hf, submit(hf, "mails", {"to": "old@example.org"}, "--request-id", "restored"), "succeeded")
    ends["LETTER"].faults({**DROPPED, "n": None})
    letters = {name: submit(hf, "letter", {"to": name}) for name in ("parked", "done", "run", "skip", "proven")}
    for task in letters.values():
        wait_state(hf, task, "parked")
    ends["LETTER"].faults()
    settle(hf, letters["done"], "--done", "--result", '{"letter": "ef_1"}')
    settle(hf, letters["run"], "--run")
    settle(hf, letters["skip"], "--skip")
    hf.json("effect", "evidence", f"{letters['proven']}/1", "--result", '{"letter": "ef_2"}')
    for name in ("done", "run", "skip", "proven"):
        wait_state(hf, letters[name], "succeeded")
    wait_state(hf, submit(hf, "nap", {}), "sleeping")
    stopped = submit(hf, "nap", {})
    wait_state(hf, stopped, "sleeping")
    hf.json("task", "cancel", stopped, "--yes", "--by", "ops")
    wait_state(hf, stopped, "cancelled")
    wait_state(hf, submit(hf, "asks", {"who": "Grace"}), "waiting")
    granted = submit(hf, "asks", {"who": "Alan"})
    wait_state(hf, granted, "waiting")
    hf.json("approval", "grant", asked(hf, granted), "--by", "ops", "--note", "as agreed")
    wait_state(hf, granted, "succeeded")
    wait_state(hf, submit(hf, "order", {"sums": [1_000, 60_000]}), "succeeded")
    wait_state(hf, submit(hf, "order", {"sums": [30_000]}), "waiting")
    wait_state(hf, submit(hf, "clerk", {"request": "a chair"}), "succeeded")


async def chat_and_scope(journal: Path, ends: dict[str, FarEnd]) -> None:
    os.environ.update(variables(ends))
    from golden_app import clerk, look

    settings = holdfast.Settings(agent="ada", worker_name="golden program", keep_days=100_000)
    async with holdfast.open(journal, tasks=[clerk], tools=[look], settings=settings) as hf:
        chat = clerk.chat("morning")
        assert (await chat.say("hello", message_id="m-1", timeout_s=60)).text == "Good morning."
        async with hf.scope("thread-7") as scope:
            await scope.call(look, slot="look-1", query="scope")


def die_inside(hf: Commands, ends: dict[str, FarEnd]) -> tuple[list[Any], list[Any]]:
    """Two payments are done and not answered; the caller kills the worker now.

    Returns what the far end has in its books of them, and what the model was told last.
    """
    payment = ends["PAYMENT"]
    payment.faults({"kind": "hold", "n": 2})
    tasks = [submit(hf, "buy", {"cents": 700}), submit(hf, "clerk", {"request": "a table"})]
    inside = payment.ask("/_waiting?n=2&timeout_s=60")["inside"]
    assert sorted(one["task"] for one in inside) == sorted(tasks)
    submit(hf, "later", {"who": "Edsger"})
    done = [one for one in payment.ledger()["effects"] if one["task"] in tasks]
    return done, ends["MODEL"].requests()[-1]["messages"]


def submit(hf: Commands, task: str, args: dict[str, Any], *more: str) -> str:
    words = ("submit", f"{APP}:tasks", json.dumps(args), "--task", task, "--no-follow", *more)
    return hf.json(*words)["task_id"]


def settle(hf: Commands, task: str, *decision: str) -> None:
    """As soon as nothing can be under way any more."""
    words = ("effect", "settle", f"{task}/1", *decision, "--by", "ops", "--note", "asked", "--yes")
    wait_until(lambda: hf.run(*words).returncode == 0, hf.said)


def asked(hf: Commands, task: str) -> str:
    found = hf.json("approval", "list")["approvals"]
    return next(one["approval"] for one in found if one["task_id"] == task)


def wait_state(hf: Commands, task: str, state: str) -> None:
    def met() -> bool:
        now = hf.json("task", "show", task)["state"]
        assert now == state or now not in ENDED, (task, now, state)
        return now == state

    wait_until(met, hf.said)


def seen_journal(hf: Commands) -> dict[str, Any]:
    """What this version says of the journal that it has written."""
    tasks = hf.json("task", "list", "--limit", "100")["tasks"]
    return {
        "tasks": {one["task_id"]: hf.json("task", "show", one["task_id"]) for one in tasks},
        "secrets": hf.json("secret", "list")["secrets"],
        "approvals": sorted(one["approval"] for one in hf.json("approval", "list")["approvals"]),
        "effects": sorted(one["effect"] for one in hf.json("effect", "list")["effects"]),
        "memory": (hf.root / "ada" / "MEMORY.md").read_text(),
        **records(hf.root / "ada" / "journal.db"),
    }


def records(journal: Path) -> dict[str, Any]:
    """How many records of each kind, and steps' events: columns that are not sealed."""
    db: Any = apsw.Connection(str(journal), flags=apsw.SQLITE_OPEN_READONLY)
    rows = list(db.execute("SELECT kind, what FROM record"))
    db.close()
    kinds = Counter(str(kind) for kind, _ in rows)
    events = Counter(str(what >> shift & 255) for _, what in rows for shift in (0, 8))
    events.pop("0", None)
    return {"kinds": dict(sorted(kinds.items())), "events": dict(sorted(events.items()))}


@contextmanager
def opened(tar: Path) -> Generator[Commands]:
    with tempfile.TemporaryDirectory(prefix="golden-", dir="/tmp") as folder:
        root = Path(folder) / "copy"
        unpack(tar, root)
        yield Commands(root, HOLDFAST_JOURNAL=str(root / "ada" / "journal.db"))


# the agent


def make_agent(root: Path, out: Path) -> dict[str, Any]:
    root.mkdir(mode=0o700)
    home = root / "ada"
    for name in ("credentials", "place"):
        (root / name).mkdir(mode=0o700)
    write_private(root / "credentials" / CREDENTIAL, CREDENTIAL_TEXT + "\n")
    hf = Commands(root, CREDENTIALS_DIRECTORY=str(root / "credentials"), HOLDFAST_HOME=str(home))
    words = init(hf)
    with open(home / "holdfast.toml", "a") as settings:
        settings.write('\n[worker]\nname = "golden worker"\n')
    hf.json("secret", "set", "billing", "--from-fd", "0", stdin=TOKEN)
    hf.json("memory", "add", "The customer pays on Fridays", "--to", "MEMORY")
    work(hf, "later", {"who": "Ada"}, 0)
    hf.json("place", "add", "stick", str(root / "place"))
    hf.json("backup", "now")
    hf.json("identity", "rotate", "--yes", fds={"--second-passphrase-fd": SECOND})
    hf.json("memory", "add", "The customer has moved", "--to", "MEMORY")
    work(hf, "asks", {"who": "Grace"}, None)
    time.sleep(1)  # heads have whole seconds
    hf.json("backup", "now")
    seen = {
        "words": words,
        "identity": hf.json("identity", "show"),
        "backups": hf.json("backup", "list", "--snapshots"),
        "memory": (home / "MEMORY.md").read_text(),
        "tasks": {one["task_id"]: hf.json("task", "show", one["task_id"]) for one in hf.json("task", "list")["tasks"]},
    }
    parts = ("vault", "second", "witness", "arbiter", "credentials")
    leave_out = LEFT_OUT | {"instance"}
    pack(out / "agent.tar.gz", root, "ada", "place", *parts, leave_out=leave_out)
    for name in ("kel.jsonl", "receipts.jsonl"):
        shutil.copyfile(home / name, out / name)
    seen["move"] = hf.json("migrate", "export", str(root / "ada.move"))
    pack(out / "move.tar.gz", root, "ada.move", *parts, leave_out=leave_out)
    return json.loads(json.dumps(seen).replace(str(root), "/golden-root"))


def init(hf: Commands) -> str:
    """The vault has two ways in that no path is part of; the words are for the tests."""
    reader, writer = os.pipe()
    places = [word for name in ("vault", "second", "witness", "arbiter") for word in (f"--{name}", str(hf.root / name))]
    child = subprocess.Popen(
        [
            sys.executable,
            "-P",
            "-m",
            "holdfast",
            "init",
            "ada",
            "--home",
            str(hf.root / "ada"),
            *places,
            "--credential",
            CREDENTIAL,
            "--words-fd",
            str(writer),
            "--passphrase-fd",
            "0",
            "--second-passphrase-fd",
            str(given := os.memfd_create("second")),
        ],
        env=hf.environment,
        pass_fds=(writer, given),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    os.write(given, SECOND.encode() + b"\n")
    os.lseek(given, 0, os.SEEK_SET)
    os.close(writer)
    child.communicate(PASSPHRASE.encode() + b"\n")
    with os.fdopen(reader) as shown:
        words = shown.read().strip()
    assert child.returncode == 0
    os.close(given)
    return words


def work(hf: Commands, task: str, args: dict[str, Any], code: int | None) -> None:
    done = hf.run(
        "submit", f"{APP}:tasks", json.dumps(args), "--task", task, "--request-id", task, "--run", "--timeout", "10"
    )
    assert code is None or done.returncode == code, done.stderr


def write_private(path: Path, text: str) -> None:
    path.touch(mode=0o600)
    path.write_text(text)


if __name__ == "__main__":
    main()
