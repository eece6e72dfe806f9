"""Mail by SMTP: at most once; what can be known is known, and only the rest is parked."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.contracts import SmtpMail
from holdfast.contracts.smtp import stuffed
from holdfast.errors import Misuse
from holdfast.journal.records import TaskState
from holdfast.testing.far_ends.smtp import SmtpTrouble, SubmissionServer
from holdfast.testing.lab import Lab, wait_state
from holdfast_proofs.support.tls import make_tls

DONE = (TaskState.SUCCEEDED, TaskState.PARKED, TaskState.FAILED)
TEXT = "Hello Ada,\n.\n..dots\nGrüße\n" + "x" * 3_000
MAIL: dict[str, Any] = {"to": ["ada@example.org", "bob@example.org"], "subject": "Trip ✈", "text": TEXT}


@pytest.fixture
async def server() -> AsyncGenerator[SubmissionServer]:
    async with SubmissionServer() as made:
        yield made


def mailing(server: SubmissionServer, **options: Any) -> holdfast.TaskType:
    words: dict[str, Any] = {"security": "none", "port": server.port, **options}
    mail = SmtpMail("127.0.0.1", sender="bot@example.org", **words)

    @holdfast.task(name="mail")
    async def one(run: holdfast.Run) -> Any:
        try:
            return await run.call(mail.send, **MAIL)
        except holdfast.Refused as error:
            return ["refused", error.proof.get("status") or error.proof["error"]]

    return one


async def play(lab: Lab, task: holdfast.TaskType) -> tuple[TaskState, Any]:
    async with lab.open(task, pace=0.002) as hf:
        handle = await hf.submit(task)
        row = await wait_state(handle, *DONE)
        view = await handle.view()
        return row.state, view.outcome["result"] if view.outcome else view.steps["1"].question


async def test_a_mail_arrives_as_it_was_written(lab: Lab, server: SubmissionServer) -> None:
    state, result = await play(lab, mailing(server))
    (taken,) = server.taken
    assert (state, result["message_id"]) == (TaskState.SUCCEEDED, taken.id)
    assert (taken.sender, taken.recipients) == ("bot@example.org", tuple(MAIL["to"]))
    raw = taken.mail.get_payload(decode=True)
    assert isinstance(raw, bytes)
    assert raw.decode().replace("\r\n", "\n").rstrip("\n") == TEXT
    assert max(map(len, taken.raw.splitlines())) < 1_000


@pytest.mark.parametrize(
    "trouble",
    [
        SmtpTrouble("greet", 421),
        SmtpTrouble("mail"),
        SmtpTrouble("rcpt", 450),
        SmtpTrouble("data"),
        SmtpTrouble("dot", 452),
        SmtpTrouble("cut"),
    ],
    ids=lambda one: one.kind,
)
async def test_what_was_not_taken_is_sent_again(lab: Lab, server: SubmissionServer, trouble: SmtpTrouble) -> None:
    """A server that says later, and a line that breaks before the dot can have been sent."""
    server.troubles += [trouble]
    state, _ = await play(lab, mailing(server))
    if trouble.kind == "cut":  # the dot may have been on its way: nobody knows, a person decides
        assert state in (TaskState.SUCCEEDED, TaskState.PARKED)
        assert len(server.taken) <= 1
        return
    assert (state, len(server.taken), server.talks) == (TaskState.SUCCEEDED, 1, 2)


@pytest.mark.parametrize("kind", ["mail", "rcpt", "data", "dot"])
async def test_a_no_for_good_is_a_refusal(lab: Lab, server: SubmissionServer, kind: Any) -> None:
    """One recipient that is refused: nobody gets it."""
    server.troubles += [SmtpTrouble(kind, 550)]
    assert await play(lab, mailing(server)) == (TaskState.SUCCEEDED, ["refused", 550])
    assert (server.taken, server.talks) == ([], 1)


@pytest.mark.parametrize(("kind", "count"), [("lose", 1), ("reset", 0)])
async def test_after_the_dot_without_a_word_a_person_decides(
    lab: Lab, server: SubmissionServer, kind: Any, count: int
) -> None:
    server.troubles += [SmtpTrouble(kind)]
    state, question = await play(lab, mailing(server))
    assert (state, len(server.taken), server.talks) == (TaskState.PARKED, count, 1)
    assert "was it done?" in question


@pytest.mark.parametrize(("kind", "talks"), [("lose", 1), ("reset", 2)])
async def test_a_lookup_by_message_id_settles_it(lab: Lab, server: SubmissionServer, kind: Any, talks: int) -> None:
    asked: list[str] = []

    async def count(message_id: str) -> int:
        asked.append(message_id)
        return len([one for one in server.taken if one.id == message_id])

    server.troubles += [SmtpTrouble(kind)]
    state, result = await play(lab, mailing(server, lookup=count, lookup_lag_s=1))
    assert (state, len(server.taken), server.talks) == (TaskState.SUCCEEDED, 1, talks)
    assert asked == [server.taken[0].id] == [result["message_id"]]


@pytest.mark.parametrize(("count", "question"), [(None, "could not find out"), (2, "more than once")])
async def test_a_lookup_that_is_not_certain_is_a_persons_matter(
    lab: Lab, server: SubmissionServer, count: int | None, question: str
) -> None:
    async def look(message_id: str) -> int | None:
        return count

    server.troubles += [SmtpTrouble("lose")]
    state, told = await play(lab, mailing(server, lookup=look, lookup_lag_s=1))
    assert (state, len(server.taken)) == (TaskState.PARKED, 1)
    assert question in told


async def test_at_least_once_repeats_the_same_message(lab: Lab, server: SubmissionServer) -> None:
    """For those who would rather have two: both have one Message-ID."""
    server.troubles += [SmtpTrouble("lose")]
    state, _ = await play(lab, mailing(server, policy="at_least_once"))
    assert (state, len(server.taken)) == (TaskState.SUCCEEDED, 2)
    assert server.taken[0].id == server.taken[1].id


@pytest.mark.parametrize("kind", ["wait", "hold"])
async def test_a_killed_worker(lab: Lab, server: SubmissionServer, start_worker: Any, kind: Any) -> None:
    """Killed before the dot: nothing was delivered, another worker sends it. Killed after it:
    parked, with the mail in the server's book once."""
    server.troubles += [SmtpTrouble(kind)]
    words = {"port": server.port, "args": MAIL}
    async with start_worker("smtp", **words) as first:
        await server.wait_inside()
        await first.kill()
    server.release()
    async with start_worker("smtp", **words) as second:
        if kind == "wait":
            result = json.loads(await second.hear("result"))
            assert result[1]["message_id"] == server.taken[0].id
        else:
            assert "was it done?" in await second.hear("parked")
    assert (len(server.taken), server.talks) == (1, 2 if kind == "wait" else 1)


@pytest.mark.parametrize("security", ["tls", "starttls"])
@pytest.mark.parametrize("words", ["PLAIN LOGIN", "LOGIN", "CRAM-MD5"])
async def test_secured_and_logged_in(
    lab: Lab, tmp_path: Path, keep: Callable[[str, str], None], security: Any, words: str
) -> None:
    keep("smtp", "correct-horse-battery")
    context, _ = make_tls(tmp_path)
    async with SubmissionServer(
        user="bot", password="correct-horse-battery", tls=context, words=words, from_the_start=security == "tls"
    ) as server:
        options = {
            "security": security,
            "user": "bot",
            "password": "secret://smtp",
            "cafile": str(tmp_path / "server.pem"),
        }
        state, result = await play(lab, mailing(server, **options))
    assert state is TaskState.SUCCEEDED
    if words == "CRAM-MD5":
        assert result == ["refused", 504]
    else:
        assert [one.tls for one in server.taken] == [True]
    assert b"correct-horse" not in lab.journal.read_bytes()


async def test_a_server_without_starttls_gets_no_mail(lab: Lab, server: SubmissionServer) -> None:
    state = await play(lab, mailing(server, security="starttls"))
    assert state == (TaskState.SUCCEEDED, ["refused", 530])
    assert server.taken == []


async def test_a_certificate_of_a_stranger_is_not_trusted(lab: Lab, tmp_path: Path) -> None:
    context, _ = make_tls(tmp_path)
    async with SubmissionServer(tls=context, from_the_start=True) as server:
        told = await play(lab, mailing(server, security="tls"))
    assert told == (TaskState.SUCCEEDED, ["refused", "certificate"])
    assert server.taken == []


@pytest.mark.parametrize(
    "bad",
    [
        {"subject": "a\r\nBcc: x@example.org"},
        {"to": []},
        {"to": ["a@b\r\nRCPT TO:<c@d>"]},
        {"to": ["Ada <a@example.org>"]},
        {"to": ["ä@example.org"]},
        {"to": ["a@b.org"] * 101},
    ],
)
async def test_what_cannot_be_a_mail_is_not_sent(lab: Lab, server: SubmissionServer, bad: dict[str, Any]) -> None:
    mail = SmtpMail("127.0.0.1", sender="bot@example.org", security="none", port=server.port)

    @holdfast.task
    async def one(run: holdfast.Run) -> Any:
        try:
            await run.call(mail.send, **{**MAIL, **bad})
        except holdfast.ToolFailed as error:
            return error.kind

    async with lab.open(one) as hf:
        assert await (await hf.submit(one)).result(20) == "Misuse"
    assert server.talks == 0


@pytest.mark.parametrize(
    ("mail", "expected"),
    [
        (b"a\r\nb", b"a\r\nb\r\n"),
        (b"a\n.\nb\n", b"a\r\n..\r\nb\r\n"),
        (b".a\r\n..b\r\n", b"..a\r\n...b\r\n"),
        (b"", b""),
        (b"a\rb", b"a\r\nb\r\n"),
    ],
)
def test_dots_are_doubled_and_lines_ended(mail: bytes, expected: bytes) -> None:
    assert stuffed(mail) == expected


def test_what_is_wrong_is_said_at_once() -> None:
    good: dict[str, Any] = {"host": "mail.example.org", "sender": "a@example.org"}
    for bad in (
        {"sender": "a"},
        {"user": "a"},
        {"password": "secret://p"},
        {"user": "a", "password": "value"},
        {"security": "ssl"},
        {"user": "a", "password": "secret://p", "security": "none"},
    ):
        words: dict[str, Any] = {**good, **bad}
        with pytest.raises(Misuse):
            SmtpMail(**words)
