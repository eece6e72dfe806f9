"""Files that an older version wrote: this one opens, resumes, recovers and moves them.

README.md says what they are. Only public names are used: commands, `holdfast.open`, and far ends in
processes of their own; so what moves inside Holdfast does not touch these tests.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import signal
import time
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from golden_kit import (
    APP,
    CREDENTIAL,
    HERE,
    PASSPHRASE,
    ROOT,
    SECOND,
    Commands,
    far_ends,
    unpack,
    variables,
    wait_until,
)

import holdfast

EXPECTED: dict[str, Any] = json.loads((HERE / "expected.json").read_text())
JOURNAL: dict[str, Any] = EXPECTED["journal"]
AGENT: dict[str, Any] = EXPECTED["agent"]
MINUTE_MS = 60_000
DAY_MS = 1_440 * MINUTE_MS
KINDS = {str(kind) for kind in range(1, 12)}  # docs/formats/journal.md
EVENTS = {str(event) for event in range(1, 17)}


def differences(found: Any, expected: Any, where: str = "") -> list[str]:
    """Where they differ. A later version may add fields, and no more (docs/reference/json.md)."""
    if isinstance(expected, dict) and isinstance(found, dict):
        new, old = cast("dict[str, Any]", found), cast("dict[str, Any]", expected)
        missing = [f"{where}/{name}: missing" for name in old if name not in new]
        pairs = [(new[name], old[name], f"{where}/{name}") for name in old if name in new]
        return missing + [one for pair in pairs for one in differences(*pair)]
    if isinstance(expected, list) and isinstance(found, list):
        news, olds = cast("list[Any]", found), cast("list[Any]", expected)
        if len(news) == len(olds):
            pairs = [(new, olds[at], f"{where}/{at}") for at, new in enumerate(news)]
            return [one for pair in pairs for one in differences(*pair)]
    return [] if found == expected else [f"{where}: {found!r}, not {expected!r}"]


def task_of(name: str, **args: Any) -> str:
    """The id of the golden task with this name and these arguments."""
    every = [one for one in JOURNAL["tasks"].values() if one["state"] != "cancelled"]
    (found,) = [one["task_id"] for one in every if (one["name"], one["args"]) == (name, args)]
    return found


# the journal


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("journal")
    unpack(HERE / "journal.tar.gz", root)
    return root / "ada" / "journal.db"


def test_every_task_reads_as_it_was_written(journal: Path) -> None:
    """States, results, steps, keys, notes, claims, files, plans and costs of all tasks."""
    hf = Commands(journal.parent, HOLDFAST_JOURNAL=str(journal))
    listed = hf.look("task", "list", "--limit", "100")["tasks"]
    assert [one["task_id"] for one in listed] == list(JOURNAL["tasks"])
    shown = {one: hf.look("task", "show", one) for one in JOURNAL["tasks"]}
    assert differences(shown, JOURNAL["tasks"]) == []


def test_what_is_open_and_kept_reads_as_it_was_written(journal: Path) -> None:
    hf = Commands(journal.parent, HOLDFAST_JOURNAL=str(journal))
    found = {
        "secrets": hf.look("secret", "list")["secrets"],
        "approvals": sorted(one["approval"] for one in hf.look("approval", "list")["approvals"]),
        "effects": sorted(one["effect"] for one in hf.look("effect", "list")["effects"]),
        "memory": (journal.parent / "MEMORY.md").read_text(),
    }
    assert differences(found, {name: JOURNAL[name] for name in found}) == []
    assert hf.look("effect", "list")["unreadable"] == []


def test_the_golden_journal_holds_every_kind_of_record() -> None:
    """Whoever makes the files anew must not make them poorer."""
    assert set(JOURNAL["kinds"]) == KINDS
    assert set(JOURNAL["events"]) == EVENTS
    states = {one["state"] for one in JOURNAL["tasks"].values()}
    assert states == {"queued", "running", "sleeping", "waiting", "parked", "succeeded", "failed", "cancelled"}


class LaterClock:
    """Clocks of a machine that was started ten minutes ago, so long after the files were made.

    Key windows end with time, and these files are to be resumed on all machines and in all years.
    """

    boot_id = "golden"

    def __init__(self, later_ms: int) -> None:
        self._began = time.monotonic_ns()
        self._wall_ms = JOURNAL["newest_ms"] + later_ms

    def boot_ms(self) -> int:
        return 10 * MINUTE_MS + (time.monotonic_ns() - self._began) // 1_000_000

    def wall_ms(self) -> int:
        return self._wall_ms + self.boot_ms()


class Life:
    """The golden journal, its far ends as the killed worker left them, and what came of it."""

    def __init__(self, journal: Path, hf: Commands, ends: Mapping[str, Any]) -> None:
        self.journal = journal
        self.hf = hf
        self.ends = ends
        self.results: dict[str, Any] = {}
        self.answers: list[str] = []
        for one in JOURNAL["requests"]:
            headers = {
                "Idempotency-Key": one["key"],
                "Holdfast-Task": one["task"],
                "Holdfast-Step": one["step"],
                "Content-Type": "application/json",
            }
            ends["PAYMENT"].ask("/charges", one["body"], headers)

    def served(self, later_ms: int, *wanted: str, said: str = "") -> None:
        """A worker of this version, in this process, takes up what it finds."""
        app: Any = importlib.import_module("golden_app")  # it reads the model's address now
        settings = holdfast.Settings(agent="ada", keep_days=100_000, tombstone_days=100_000)

        async def serve() -> None:
            clock = LaterClock(later_ms)
            opened = holdfast.open(self.journal, tasks=app.tasks, settings=settings, clock=clock)
            async with opened as hf:
                for task_id in wanted:
                    self.results[task_id] = await hf.task(task_id).result(60)
                if said:
                    chat = app.clerk.chat("morning")
                    await chat.say(said, message_id="m-2", timeout_s=60)
                    self.answers = [one.text for one in await chat.answers()]

        asyncio.run(serve())

    def show(self, task_id: str) -> Any:
        return self.hf.look("task", "show", task_id)


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> Generator[Life]:
    """Minutes after the kill this version takes up what was under way."""
    root = tmp_path_factory.mktemp("resumed")
    unpack(HERE / "journal.tar.gz", root)
    path = root / "ada" / "journal.db"
    with far_ends(root) as ends, pytest.MonkeyPatch.context() as patch:
        for name, value in variables(ends).items():
            patch.setenv(name, value)
        hf = Commands(root, HOLDFAST_JOURNAL=str(path), **variables(ends))
        life = Life(path, hf, ends)
        open_tasks = (task_of("buy", cents=700), task_of("clerk", request="a table"))
        life.served(MINUTE_MS, *open_tasks, task_of("later", who="Edsger"), said="thank you")
        yield life


def test_the_killed_payment_is_charged_once_under_its_old_key(resumed: Life) -> None:
    """The far end knows the key of the old version, and finds the body equal to the byte."""
    page = resumed.ends["PAYMENT"].ledger()
    old = {one["key"]: one["body_sha256"] for one in JOURNAL["requests"]}
    sent = [one for one in page["requests"] if one["key"] in old]
    assert page["by_key"] == dict.fromkeys(old, 1)
    assert page["duplicates"] == 0
    assert {(one["key"], one["body_sha256"]) for one in sent} == set(old.items())
    assert sorted(one["outcome"] for one in sent).count("replayed") == len(old)
    task_id = task_of("buy", cents=700)
    assert resumed.results[task_id] == {"receipt": "ch_000001", "paid": 700}
    view = resumed.show(task_id)
    assert (view["state"], view["changed"]) == ("succeeded", [])
    assert view["steps"][1]["effect_key"] == JOURNAL["tasks"][task_id]["steps"][1]["effect_key"]


def test_the_killed_agent_goes_on_with_its_old_talk(resumed: Life) -> None:
    """The model is told what the old version told it, message by message, and what came after."""
    assert resumed.results[task_of("clerk", request="a table")] == "Bought: one chair."
    asked = next(one["messages"] for one in resumed.ends["MODEL"].requests() if "a table" in str(one))
    old = JOURNAL["messages"]
    assert asked[: len(old)] == old
    assert "From the runtime" in str(asked[len(old) :])
    assert resumed.results[task_of("later", who="Edsger")] == "Edsger"


def test_an_old_conversation_goes_on(resumed: Life) -> None:
    assert resumed.answers == ["Good morning.", "You are welcome."]


def test_what_waits_for_a_person_is_decided_and_finishes(resumed: Life) -> None:
    """An effect in doubt, a question, a call that the gate holds back; served by a real worker."""
    parked, asked = task_of("letter", to="parked"), task_of("asks", who="Grace")
    large = task_of("order", sums=[30_000])
    hf = resumed.hf
    hf.json("effect", "settle", f"{parked}/1", "--done", "--result", '{"letter": "ef_9"}', "--yes")
    hf.json("approval", "grant", f"{asked}/1", "--by", "a test")
    hf.json("approval", "grant", f"{large}/1", "--by", "a test")
    worker = hf.start("worker", f"{APP}:tasks")
    try:
        for task_id in (parked, asked, large):
            wait_until(lambda one=task_id: resumed.show(one)["state"] == "succeeded", hf.said)
    finally:
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) == 0
    assert resumed.show(parked)["result"] == {"posted": {"letter": "ef_9"}}
    assert resumed.show(asked)["result"] == {"granted": True, "by": "a test", "note": ""}
    key = resumed.show(large)["steps"][0]["effect_key"]
    assert resumed.ends["PAYMENT"].ledger()["by_key"][key] == 1
    assert resumed.ends["LETTER"].ledger()["effects"] == []


def test_the_sleeper_wakes(resumed: Life) -> None:
    resumed.served(301 * DAY_MS, task_of("nap"))
    assert resumed.results[task_of("nap")] == "awake"


def test_the_same_request_finds_the_old_task(journal: Path) -> None:
    """Task ids are made from the agent's key, name and request id."""
    hf = Commands(journal.parent, HOLDFAST_JOURNAL=str(journal))
    words = ("submit", f"{APP}:tasks", '{"to": "old@example.org"}', "--task", "mails", "--no-follow")
    found = hf.json(*words, "--request-id", "restored")
    assert found["created"] is False
    assert found["task_id"] == task_of("mails", to="old@example.org")


def test_a_new_journal_beside_the_old_one_has_tasks_of_its_own(tmp_path: Path) -> None:
    """The old ring lists no journals: the old one goes on under its old ids, also after the ring has changed."""
    unpack(HERE / "journal.tar.gz", tmp_path)
    old, new = tmp_path / "ada" / "journal.db", tmp_path / "ada" / "new.db"

    def submit(journal: Path) -> Any:
        hf = Commands(journal.parent, HOLDFAST_JOURNAL=str(journal))
        words = ("submit", f"{APP}:tasks", '{"to": "old@example.org"}', "--task", "mails", "--no-follow")
        return hf.json(*words, "--request-id", "restored")

    other = submit(new)
    assert other["created"] is True
    assert other["task_id"] != task_of("mails", to="old@example.org")
    for _ in range(2):
        found = submit(old)
        assert (found["task_id"], found["created"]) == (task_of("mails", to="old@example.org"), False)
    assert submit(new) == {**other, "created": False}


# the agent


def golden_agent(root: Path, tar: str) -> Commands:
    unpack(HERE / tar, root)
    credentials = str(root / "credentials")
    return Commands(root, CREDENTIALS_DIRECTORY=credentials, HOLDFAST_HOME=str(root / "ada"))


def here(value: Any, root: Path) -> Any:
    """An expected value, with this root in its paths."""
    return json.loads(json.dumps(value).replace(ROOT.decode(), str(root)))


def check_same_agent(hf: Commands, home: Path, *, open_state: str) -> None:
    """Id, memory, log and tasks; of the task that has ended, all that is recorded."""
    found = hf.look("identity", "show")
    assert (found["id"], found["standing"]) == (AGENT["identity"]["id"], "active")
    assert (home / "MEMORY.md").read_text() == AGENT["memory"]
    assert (home / "kel.jsonl").read_bytes().startswith((HERE / "kel.jsonl").read_bytes())
    listed = hf.look("task", "list")["tasks"]
    waits, done = AGENT["tasks"].values()
    assert [(one["task_id"], one["state"]) for one in listed] == [
        (waits["task_id"], open_state),
        (done["task_id"], "succeeded"),
    ]
    assert differences(hf.look("task", "show", done["task_id"]), done) == []


def test_the_vault_opens_and_speaks_for_the_same_id(tmp_path: Path) -> None:
    """By passphrase and by credential; the second place gives the next key of a new rotation."""
    hf = golden_agent(tmp_path, "agent.tar.gz")
    identity = hf.look("identity", "show")
    assert differences(identity, here(AGENT["identity"], tmp_path)) == []
    assert (tmp_path / "ada" / "kel.jsonl").read_bytes() == (HERE / "kel.jsonl").read_bytes()
    (tmp_path / "credentials" / CREDENTIAL).unlink()
    words = ("identity", "answer", "--challenge", "3q2-7wAAAAAAAAAAAAAAAQ")
    assert hf.run(*words).returncode != 0, "the vault opens without a way in"
    answer = hf.run(*words, fds={"--passphrase-fd": PASSPHRASE})
    assert answer.returncode == 0, answer.stderr
    assert identity["id"] in answer.stdout
    rotated = hf.json(
        "identity", "rotate", "--yes", fds={"--passphrase-fd": PASSPHRASE, "--second-passphrase-fd": SECOND}
    )
    assert (rotated["id"], rotated["head"]["g"], rotated["head"]["s"]) == (identity["id"], 0, 2)


def test_the_old_place_is_listed_and_verified(tmp_path: Path) -> None:
    """Both snapshots, from the place as it was written, with nothing that this machine knows."""
    hf = golden_agent(tmp_path, "agent.tar.gz")
    found = hf.look("backup", "list", "--snapshots")
    wanted = here(AGENT["backups"], tmp_path)
    for place in wanted["places"]:  # what the old machine alone knew
        for name in ("last_backup", "last_verified", "verified_archive", "result"):
            del place[name]
    assert differences(found, wanted) == []
    older = AGENT["backups"]["snapshots"][1]["archive"]  # the newest is what a recovery restores
    (place,) = hf.json("backup", "verify", "--snapshot", older)["places"]
    assert place["verified"], place


def test_paper_and_the_old_place_are_the_agent(tmp_path: Path) -> None:
    golden_agent(tmp_path / "lost", "agent.tar.gz")
    bare = tmp_path / "bare"
    bare.mkdir(mode=0o700)
    home = bare / "agents" / "ada"
    hf = Commands(bare, HOLDFAST_HOME=str(home))
    seen = hf.json(
        "recover",
        "--yes",
        "--place",
        str(tmp_path / "lost" / "place"),
        "--second",
        str(bare / "second"),
        "--unlock-file",
        str(bare / "unlock"),
        fds={"--words-fd": AGENT["words"], "--second-passphrase-fd": "another passphrase here"},
    )
    assert (seen["id"], seen["done"], seen["secrets_to_rotate"]) == (AGENT["identity"]["id"], True, ["billing"])
    assert seen["suspect_tasks"] == 1
    check_same_agent(hf, home, open_state="queued")


def test_the_old_package_moves_in(tmp_path: Path) -> None:
    hf = golden_agent(tmp_path, "move.tar.gz")
    home, out = tmp_path / "ada", AGENT["move"]
    places = [
        word for name in ("vault", "second", "arbiter", "witness") for word in (f"--{name}", str(tmp_path / name))
    ]
    done = hf.json("migrate", "import", str(tmp_path / "ada.move"), *places)
    assert (done["incarnation"], done["claimed"]) == (out["incarnation"] + 1, True)
    check_same_agent(hf, home, open_state="waiting")
