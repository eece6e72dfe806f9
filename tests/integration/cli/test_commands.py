"""Each command does what its help says, for people and as JSON."""

from __future__ import annotations

import asyncio
import re
import subprocess
import time
from collections.abc import Callable

import pytest

import holdfast
from holdfast.cli.command import COMMANDS
from holdfast.core.ids import TaskId
from holdfast.host.who import user_at_host
from holdfast_proofs.support.command_line import Commands, Worker, command_line, environment

VERBS = [
    "submit",
    "worker",
    "task list",
    "task show",
    "task cancel",
    "task retry",
    "effect list",
    "effect show",
    "effect settle",
    "effect evidence",
    "approval list",
    "approval grant",
    "approval refuse",
    "doctor",
]


def submit(hf: Commands, task: str, request: str = "{}", *, code: int = 0) -> str:
    """Submit and run to the end or to a rest; the task id."""
    hf("submit", "app.py:tasks", request, "--task", task, "--run", code=code)
    return hf.look("task", "list", "--json", "--limit", "1").json["tasks"][0]["task_id"]


def accept(hf: Commands, task: str, request: str = "{}") -> str:
    """Submit without running; the task id."""
    words = ("submit", "app.py:tasks", request, "--task", task, "--no-follow")
    return hf(*words).out.strip()


def wait_ended(worker: Worker, task_id: str) -> str:
    """The state in which the worker leaves the task."""
    while True:
        event = worker.wait_event("run-ended")
        if event["task_id"] == task_id:
            return str(event["state"])


def test_help_names_every_command(hf: Commands, measured: Callable[[str], None]) -> None:
    began = time.monotonic()
    shown = hf("--help").out
    measured(f"holdfast --help: {time.monotonic() - began:.2f} s")
    assert all(f"\n  {name}" in shown for name in COMMANDS)


def test_help_loads_nothing_it_does_not_need(hf: Commands) -> None:
    code = (
        "import sys; from holdfast.cli.main import main; main(['--help']); "
        "print([m for m in ('asyncio', 'apsw', 'rich', 'msgspec', 'cryptography') "
        "if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([*command_line()[:1], "-c", code], capture_output=True, text=True, cwd=hf.folder)
    assert done.stderr.strip() == "[]"


def test_version_is_the_package_s(hf: Commands) -> None:
    assert hf("--version").out == "holdfast 0.1.0\n"


@pytest.mark.parametrize("words", VERBS)
def test_every_command_explains_itself_with_two_examples(hf: Commands, words: str) -> None:
    shown = hf.look(*words.split(), "--help").out
    examples = shown.split("examples:\n")[1].strip().splitlines()
    assert len(examples) >= 2
    assert all(line.strip().startswith(f"holdfast {words}"[:12]) for line in examples)
    if words.endswith("list") or words in ("task show", "doctor", "submit"):
        assert "columns:" in shown


def test_submit_follows_to_the_result(hf: Commands) -> None:
    done = hf("submit", "app.py:only", "ada", "--run")
    assert done.json == {"hits": 3, "sent": {"to": "ada"}}
    assert "step 1 look (Read): succeeded" in done.err
    assert "step 2 send (Unrepeatable): succeeded" in done.err


def test_the_same_request_id_is_the_same_task(hf: Commands) -> None:
    """As JSON: one object on standard output, nothing on standard error."""
    words = ("submit", "app.py:only", "--request-id", "order-77", "--run", "--json")
    first = hf(*words, "ada")
    assert first.err == ""
    assert (first.json["state"], first.json["created"]) == ("succeeded", True)
    assert first.json["result"] == {"hits": 3, "sent": {"to": "ada"}}
    assert hf(*words, '{"who": "ada"}').json == {**first.json, "created": False}
    assert (hf.folder / "sent").read_text().count("\n") == 1
    assert hf(*words, "bob", code=4).error["code"] == "request-conflict"


def test_requests_come_from_files_and_standard_input(hf: Commands) -> None:
    (hf.folder / "request.json").write_text('{"value": [1, 2.5, "x"]}')
    echo = ("submit", "app.py:tasks", "--task", "echo", "--run")
    assert hf(*echo, "@request.json").json == [1, 2.5, "x"]
    assert hf(*echo, "-", stdin="two\nlines\n").json == "two\nlines"
    assert hf(*echo, "42").json == "42"


def test_submit_without_a_worker_says_so_and_keeps_the_task(hf: Commands) -> None:
    for words in (("--timeout", "3"), ("--no-follow",)):
        done = hf("submit", "app.py:only", "ada", "--request-id", "r", *words, code=8 if "--timeout" in words else 0)
        assert "no worker serves this journal yet; the task waits for one" in done.err
        assert "holdfast worker app.py:only" in done.err
    assert "the task continues" not in done.err
    assert [one["state"] for one in hf.look("task", "list", "--json").json["tasks"]] == ["queued"]
    assert "1 task waits and no worker" in hf.look("doctor", code=1).out
    hf("submit", "app.py:only", "ada", "--request-id", "r", "--run")
    assert hf("submit", "app.py:only", "ada", "--request-id", "r", "--no-follow").err == ""


def test_submit_need_not_follow(hf: Commands) -> None:
    task_id = hf("submit", "app.py:only", "ada", "--no-follow").out.strip()
    found = hf.look("task", "show", task_id[:8].lower(), "--json").json
    assert found["task_id"] == task_id
    assert (found["state"], found["args"]) == ("queued", {"who": "ada"})


def test_task_show_has_every_step(hf: Commands) -> None:
    task_id = submit(hf, "undoes")
    shape = hf("task", "show", task_id, "--json").json
    assert [(step["ordinal"], step["compensation"]) for step in shape["steps"]] == [("1", "compensated"), ("1.c1", "")]
    first = shape["steps"][0]
    assert (first["tool"], first["class"], first["state"]) == ("send", "Unrepeatable", "succeeded")
    assert first["attempts"] == 1
    assert first["effect_key"] in (hf.folder / "sent").read_text()
    assert first["started"] <= first["ended"]
    assert len(shape["claims"]) == 1
    page = hf.look("task", "show", task_id).out
    assert "succeeded (compensated)" in page
    assert not any(word in page for word in (first["effect_key"], "claimed by", "session"))
    full = hf.look("task", "show", task_id, "--all").out
    assert first["effect_key"] in full
    assert "claimed by" in full


def test_tasks_are_listed_by_state_and_name(hf: Commands) -> None:
    submit(hf, "hello", "ada")
    submit(hf, "fails", code=9)
    table = hf("task", "list").out.splitlines()
    assert table[0].split() == ["task", "name", "state", "changed", "worker"]
    assert [line.split()[1:3] for line in table[1:]] == [["fails", "failed"], ["hello", "succeeded"]]
    assert len(hf.look("task", "list", "--state", "failed", "--json").json["tasks"]) == 1
    assert len(hf.look("task", "list", "--name", "hello", "--json").json["tasks"]) == 1
    assert hf.look("task", "list", "--limit", "1", "--json").json["more"] is True
    nothing = hf.look("task", "list", "--name", "none")
    assert (nothing.out, "no tasks" in nothing.err) == ("", True)


def test_a_parked_effect_is_shown_and_settled(hf: Commands, start_worker: Callable[..., Worker]) -> None:
    task_id = submit(hf, "parks", code=5)
    effects = hf("effect", "list", "--json").json["effects"]
    assert [(one["effect"], one["state"]) for one in effects] == [(f"{task_id}/1", "parked")]
    assert f"{task_id}/1" in hf.look("effect", "list").out
    place = f"{task_id[:10]}/1"
    page = hf("effect", "show", place).out
    assert "was it done?" in page
    assert f"holdfast effect settle {task_id}/1 --done" in page
    assert "\x1b" not in page, "a tool's message must not drive the terminal"
    why = hf.look("task", "show", task_id).out
    assert "ConnectionError: me: reset" in why, "the page of a parked task says what its tool raised"
    assert " in lose: raise ConnectionError" in why
    assert "--trace" in why
    shape = hf.look("effect", "show", place, "--json").json
    assert shape["sends"][0]["started"]
    assert (bool(shape["question"]), bool(shape["evidence"])) == (True, True)

    settle = ("effect", "settle", place, "--done", "--result", '{"id": "m1"}')
    assert "cannot ask for confirmation" in hf(*settle, code=2).err
    assert "--dry-run" in hf.look(*settle, "--dry-run").err
    assert hf.look("effect", "show", place, "--json").json["facts"] == []
    hf(*settle, "--yes", "--by", "ada", "--note", "seen in the ledger")
    fact = hf.look("effect", "show", place, "--json").json["facts"][0]
    assert (fact["body"]["by"], fact["applied"]) == ("ada", False)
    page = hf.look("effect", "show", place).out
    assert "# applies the decision" in page
    assert ("may be decided" in page, "effect settle" in page) == (False, False), "the first decision counts"
    assert "the first decision counts" in hf(*settle, "--yes", code=4).err
    assert wait_ended(start_worker(), task_id) == "succeeded"
    shown = hf.look("task", "show", task_id, "--json").json
    assert shown["result"] == {"id": "m1"}
    assert shown["steps"][0]["note"] == "seen in the ledger"
    assert hf.look("effect", "list", "--json").json["effects"] == []
    assert len(hf.look("effect", "list", "--all", "--json").json["effects"]) == 1
    page, effect = hf.look("task", "show", task_id).out, hf.look("effect", "show", place).out
    assert re.search(r"succeeded \(decided by ada\) +1 +\d", page), "the attempt before the decision stays listed"
    assert next(line.split()[:4] for line in page.splitlines() if "ledger" in line) == ["1", "done:", '{"id":', '"m1"}']
    assert "succeeded (decided by ada)" in effect
    assert "attempt 1" in effect
    assert "ConnectionError: me: reset" in effect, "what became of the attempt stays on the page"


def test_a_decision_without_a_result_or_a_name_says_what_is_recorded(hf: Commands) -> None:
    place = f"{submit(hf, 'parks', code=5)}/1"
    time.sleep(1)  # `lose` has a max_delay_s of 0.05: a request may be in flight for so long
    done = hf.look("effect", "settle", place, "--done", "--yes")
    assert "the task gets null as the result of lose" in done.err
    assert "--result JSON" in done.err
    by = hf.look("effect", "show", place, "--json").json["decisions"][0]["by"]
    assert by == user_at_host()
    assert f"by {by}" in done.err


def test_a_failing_task_is_understood_from_its_page(hf: Commands) -> None:
    task_id = submit(hf, "fails", code=9)
    page = hf.look("task", "show", task_id).out
    assert "ToolFailed: raises raised ValueError: no such flight" in page
    assert "app.py:" in page
    assert " in fails: return await run.call(raises)" in page
    assert ' in raises: raise ValueError("no such flight")' in page
    assert f"holdfast task show {task_id} --trace" in page
    assert f"`holdfast task retry {task_id}`" in page
    assert "Traceback" not in page
    whole = hf.look("task", "show", task_id, "--trace").out
    assert whole.count("Traceback (most recent call last):") >= 2
    assert "traceback of step 1 (raises):" in whole
    shape = hf.look("task", "show", task_id, "--json").json
    assert " in fails: " in shape["error"]["where"]
    assert shape["steps"][0]["tries"][0]["reason"] == "ValueError: no such flight"
    none = hf.look("task", "show", submit(hf, "hello", "ada"), "--trace")
    assert "no record of this task holds a traceback" in none.err


def test_settling_wants_one_decision_on_a_parked_step(hf: Commands) -> None:
    task_id = submit(hf, "hello", "ada")
    place = f"{task_id}/1"
    assert "--done --run --skip" in hf("effect", "settle", place, code=2).err
    assert "not parked" in hf("effect", "settle", place, "--run", "--yes", code=4).err
    words = ("effect", "settle", place, "--skip", "--result", "1")
    assert "--result needs --done" in hf(*words, code=2).err


def test_settling_a_step_of_a_poisoned_task_says_what_follows(hf: Commands) -> None:
    """The decision gives it one more run; it is not promised that the task continues."""
    task_id = submit(hf, "parks", code=5)

    async def poison() -> None:
        async with holdfast.open(hf.folder / "journal.db", serve=False) as opened:
            await opened.retry(task_id)
            for _ in range(4):  # the fourth claim finds three deaths and parks it
                session = await opened.journal.open_session(worker="dies", ttl_ms=60_000)
                await opened.journal.claim(session, names=None, limit=1, task_id=TaskId(task_id), alone=True)
                await opened.journal.end_session(session, orderly=False)

    asyncio.run(poison())
    time.sleep(1)  # until no request can be under way
    said = hf("effect", "settle", f"{task_id}/1", "--skip", "--yes").err
    assert (
        f"recorded: {task_id}/1 is decided as skip by {user_at_host()}; the task is parked because 3 runs of it killed"
        in said
    )
    assert f"holdfast task retry {task_id}" in said
    again = hf("effect", "settle", f"{task_id}/1", "--run", "--yes", code=4).err
    assert "already has a decision: skip" in again


def test_evidence_closes_a_parked_effect(hf: Commands, start_worker: Callable[..., Worker]) -> None:
    task_id = submit(hf, "parks", code=5)
    key = hf.look("effect", "list", "--json").json["effects"][0]["effect_key"]
    words = ("effect", "evidence", "--effect-key", key, "--result", "-")
    hf(*words, "--source", "webhook", stdin='{"id": "m2"}')
    assert wait_ended(start_worker(), task_id) == "succeeded"
    assert hf.look("task", "show", task_id, "--json").json["result"] == {"id": "m2"}


def test_evidence_must_say_what_it_knows(hf: Commands) -> None:
    place = f"{submit(hf, 'parks', code=5)}/1"
    assert "--result" in hf.look("effect", "evidence", place, code=2).err
    assert "not both" in hf.look("effect", "evidence", code=2).err
    both = ("effect", "evidence", place, "--did-not-happen", "--result", "1")
    assert "no result" in hf.look(*both, code=2).err
    hf("effect", "evidence", place, "--did-not-happen", "--source", "support")
    fact = hf.look("effect", "show", place, "--json").json["facts"][0]
    assert fact["body"]["outcome"] == "refused"


@pytest.mark.parametrize("verb", ["grant", "refuse"])
def test_a_question_is_answered(hf: Commands, start_worker: Callable[..., Worker], verb: str) -> None:
    task_id = accept(hf, "asks", "eve")
    worker = start_worker()
    assert wait_ended(worker, task_id) == "waiting"
    waiting = hf("approval", "list", "--json").json["approvals"]
    assert [(one["approval"], one["question"], one["details"]) for one in waiting] == [
        (f"{task_id}/1", "greet eve?", {"who": "eve"})
    ]
    assert f"{task_id}/1" in hf.look("approval", "list").out
    assert "approval: greet" in hf.look("task", "show", task_id).out
    page = hf.look("task", "show", task_id).out
    assert "a person answers" in page
    assert "waits for   your answer to step 1: greet eve?" in page
    assert f"`holdfast approval grant {task_id}/1`" in page
    hf("approval", verb, f"{task_id}/1", "--by", "ada", "--note", "ok")
    assert wait_ended(worker, task_id) == "succeeded"
    shown = hf.look("task", "show", task_id, "--json").json
    assert shown["result"] == {"granted": verb == "grant", "by": "ada", "note": "ok"}
    assert hf.look("approval", "list", "--json").json["approvals"] == []
    assert "approval-not-found" in hf.look("approval", verb, f"{task_id}/1", code=3).err


def test_a_call_that_needs_a_yes_waits_for_it(hf: Commands, start_worker: Callable[..., Worker]) -> None:
    """Whoever follows the task is told; an answer that waits for a worker is not asked again."""
    words = ("submit", "app.py:tasks", "{}", "--task", "launches", "--run", "--timeout", "2")
    assert "may launch be called?" in hf(*words, code=8).err
    waiting = hf.look("approval", "list", "--json").json["approvals"]
    assert waiting[0]["details"] == {"what": "rocket"}
    hf.look("approval", "grant", waiting[0]["approval"])
    assert hf.look("approval", "list", "--json").json["approvals"] == []
    assert wait_ended(start_worker(), waiting[0]["task_id"]) == "succeeded"


def test_cancel_and_retry_do_what_makes_sense(hf: Commands, start_worker: Callable[..., Worker]) -> None:
    failed = submit(hf, "fails", code=9)
    assert "has already ended: failed" in hf("task", "cancel", failed, "--yes", code=4).err
    assert "would run again" in hf.look("task", "retry", failed, "--dry-run").err
    hf("task", "retry", failed, "--by", "ada")
    assert hf.look("task", "show", failed, "--json").json["state"] == "queued"
    assert "only a parked or failed" in hf.look("task", "retry", failed, code=4).err
    task_id = accept(hf, "hello", "ada")
    assert "cannot ask for confirmation" in hf("task", "cancel", task_id, code=2).err
    done = hf("task", "cancel", task_id, "--yes")
    assert "no worker serves this journal now" in done.err
    assert wait_ended(start_worker(), task_id) == "cancelled"
    assert not (hf.folder / "sent").exists()


def test_a_beginning_of_an_id_must_be_unique(hf: Commands) -> None:
    ids = [accept(hf, "echo", str(number)) for number in range(9)]
    first = next(one for one in ids if sum(other[0] == one[0] for other in ids) > 1)
    done = hf.look("task", "show", first[0], code=2)
    assert "is the beginning of several task ids" in done.err
    assert first in done.err


def test_a_reader_that_leaves_early_is_no_error(hf: Commands) -> None:
    accept(hf, "hello", "ada")
    process = subprocess.Popen(
        command_line("task", "list", "--json"),
        cwd=hf.folder,
        env=environment(hf.folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    with process.stderr:
        error = process.stderr.read()
    assert (process.wait(60), error) == (141, b"")


def test_a_new_journal_where_the_keys_serve_a_missing_one_is_asked_for(hf: Commands) -> None:
    accept(hf, "hello", "ada")
    for path in hf.folder.glob("journal.db*"):
        path.rename(path.with_name(f"{path.name}.away"))
    words = ("submit", "app.py:tasks", "ada", "--task", "hello", "--no-follow", "--journal", "rome.db")
    refused = hf(*words, code=6)
    assert "--new-journal" in refused.err
    assert "--begin-anew" in refused.err
    assert hf(*words, "--new-journal").out.strip()
