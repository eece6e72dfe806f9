"""Issues: no key at the host, a mark in the body; what the host's own book holds is the judge."""

from __future__ import annotations

import json
import re
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

import holdfast
from holdfast.contracts import Issues
from holdfast.contracts.issues import read_answer
from holdfast.core import answers
from holdfast.errors import Misuse
from holdfast.journal.records import TaskState
from holdfast.runtime.http.message import Response
from holdfast.testing.far_ends.issues import IssueHost
from holdfast.testing.far_ends.web import Answer, Trouble
from holdfast.testing.lab import Lab, wait_state

TOKEN = "ghp_16C7e42F292c6912E7710c838347Ae178B4a"
DONE = (TaskState.SUCCEEDED, TaskState.PARKED, TaskState.FAILED)
OPEN = {"title": "Disk is full", "body": "on host 7", "labels": ["ops"]}


@pytest.fixture
async def host(keep: Callable[[str, str], None]) -> AsyncGenerator[IssueHost]:
    keep("git", TOKEN)
    async with IssueHost(token=TOKEN, list_lag_s=0.2) as made:
        yield made


def tools(host: IssueHost) -> Issues:
    return Issues("o/r", token="secret://git", url=host.url, list_lag_s=10)


async def play(lab: Lab, tool: holdfast.Tool[..., Any], **args: Any) -> tuple[TaskState, Any]:
    @holdfast.task
    async def one(run: holdfast.Run) -> Any:
        try:
            return await run.call(tool, **args)
        except holdfast.Refused as error:
            return ["refused", error.proof["status"]]

    async with lab.open(one) as hf:
        handle = await hf.submit(one)
        row = await wait_state(handle, *DONE)
        view = await handle.view()
        step = view.steps["1"]
        told = [step.question, json.dumps(step.evidence)]
        return row.state, view.outcome["result"] if view.outcome else told


@pytest.mark.parametrize(
    ("troubles", "posts"),
    [
        ([], 1),
        ([Trouble("lose")], 1),
        ([Trouble("reset")], 2),
        ([Trouble("after", 502)], 1),
        ([Trouble("refuse", 500), Trouble("lose")], 2),
        ([Trouble("refuse", 403, {"retry-after": "2"}), Trouble("lose")], 2),
        ([Trouble("refuse", 429, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "1"})], 2),
    ],
    ids=["plain", "reply lost", "reset", "502 done", "500 and lost", "limited and lost", "spent"],
)
async def test_one_issue_whatever_becomes_of_the_answer(
    lab: Lab, host: IssueHost, troubles: list[Trouble], posts: int
) -> None:
    host.troubles += troubles
    state, result = await play(lab, tools(host).create, **OPEN)
    assert (state, result["number"], result["state"]) == (TaskState.SUCCEEDED, 1, "open")
    assert len(host.issues) == 1
    assert len([ask for ask in host.requests if ask.method == "POST"]) == posts
    assert re.fullmatch(r"on host 7\n\n<!-- holdfast:[0-9a-f-]{36}:[0-9a-f]{16} -->", host.issues[0]["body"])


@pytest.mark.parametrize("trouble", [Trouble("lose"), Trouble("after", 500), Trouble("reset")])
async def test_one_comment_whatever_becomes_of_the_answer(lab: Lab, host: IssueHost, trouble: Trouble) -> None:
    issues = tools(host)

    @holdfast.task
    async def talk(run: holdfast.Run) -> Any:
        made = await run.call(issues.create, **OPEN)
        host.troubles.append(trouble)
        said = await run.call(issues.comment, issue=made["number"], body="seen")
        await run.call(issues.close, issue=made["number"])
        return [said["id"], (await run.call(issues.get, issue=made["number"]))["state"]]

    async with lab.open(talk) as hf:
        result = await (await hf.submit(talk)).result(20)
    assert result == [host.comments[0]["id"], "closed"]
    assert len(host.comments) == 1


async def test_a_text_that_quotes_a_mark_is_another_text(lab: Lab, host: IssueHost) -> None:
    """Somebody copies our issue's source into theirs, while our reply is lost."""
    host.troubles += [Trouble("reset")]
    state, _ = await play(lab, tools(host).create, **OPEN)
    assert (state, len(host.issues)) == (TaskState.SUCCEEDED, 1)
    quoted = f"> {host.issues[0]['body']}\n\nmy own words"
    mark = re.findall(r"<!--.*-->", quoted)[0]
    assert mark in quoted
    found = re.search(r"holdfast:([0-9a-f-]{36})", mark)
    assert found is not None
    from holdfast.contracts import issues as module

    class _Call:
        effect_key = found[1]

    call: Any = _Call()
    assert module._is_ours(call, {"body": host.issues[0]["body"] + "\r\n"})
    assert not module._is_ours(call, {"body": quoted})


@pytest.mark.parametrize("body", [b"<html>", {"message": "hm"}, ["x"]])
async def test_a_page_that_is_no_answer_is_no_absence(
    lab: Lab, host: IssueHost, monkeypatch: pytest.MonkeyPatch, body: Any
) -> None:
    host.troubles += [Trouble("lose")]
    monkeypatch.setattr(host, "_look", lambda ask: Answer(200, body))  # pyright: ignore[reportUnknownLambdaType,reportUnknownArgumentType]
    state, told = await play(lab, tools(host).create, **OPEN)
    assert (state, len(host.issues)) == (TaskState.PARKED, 1)
    assert "could not find out" in told[0]


async def test_twice_there_is_a_persons_matter(lab: Lab, host: IssueHost) -> None:
    host.troubles += [Trouble("lose")]
    work = host.work

    def twice(ask: Any, trouble: Any) -> Any:
        work(ask, trouble)
        return work(ask, trouble)

    host.work = twice
    state, told = await play(lab, tools(host).create, **OPEN)
    assert state is TaskState.PARKED
    assert "more than once" in told[0]


async def test_a_long_list_is_read_only_as_far_back_as_needed(lab: Lab, host: IssueHost) -> None:
    for number in range(2_500):
        made = host._made(host.issues, number=number + 1, title="old", state="open", body="x")
        at = time.time() - 90_000 + number
        made["at"], made["created_at"] = at, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
    host.troubles += [Trouble("lose")]
    state, result = await play(lab, tools(host).create, **OPEN)
    assert (state, result["number"]) == (TaskState.SUCCEEDED, 2_501)
    assert len([ask for ask in host.requests if ask.method == "GET"]) == 1


async def test_a_busy_host_where_only_the_search_could_say(lab: Lab, host: IssueHost) -> None:
    """More new issues than are read: the lagging search is no proof of absence."""
    host.troubles += [Trouble("lose")]
    work = host.work

    def crowded(ask: Any, trouble: Any) -> Any:
        answer = work(ask, trouble)
        for number in range(2_100):
            host._made(host.issues, number=number + 10, title="new", state="open", body="x")
        return answer

    host.work = crowded
    state, told = await play(lab, tools(host).create, **OPEN)
    assert state is TaskState.PARKED
    assert "nor in the search" in told[1]
    assert len([one for one in host.issues if one["title"] == OPEN["title"]]) == 1


async def test_a_killed_worker_leaves_one_issue(lab: Lab, host: IssueHost, start_worker: Any) -> None:
    host.troubles += [Trouble("hold")]
    words = {"url": host.url, "list_lag_s": 10, "args": OPEN}
    async with start_worker("issues", **words) as first:
        await host.wait_inside()
        await first.kill()
    host.release()
    async with start_worker("issues", **words) as second:
        result = json.loads(await second.hear("result"))
    assert (len(host.issues), result[1]["number"]) == (1, 1)
    assert len([ask for ask in host.requests if ask.method == "POST"]) == 1


def answer(status: int, **headers: str) -> Response:
    return Response(status=status, headers={n.replace("_", "-"): v for n, v in headers.items()}, body=b"{}")


@pytest.mark.parametrize(
    ("response", "after_s"),
    [
        (answer(403, retry_after="30"), 30),
        (answer(429), 60),
        (answer(403, x_ratelimit_remaining="0"), 60),
        (
            answer(
                403, x_ratelimit_remaining="0", x_ratelimit_reset="1700000100", date="Tue, 14 Nov 2023 22:13:20 GMT"
            ),
            100,
        ),
    ],
)
def test_limits_say_when_to_come_back(response: Response, after_s: float) -> None:
    found = read_answer(response)
    assert isinstance(found, holdfast.Refused)
    assert found.retry_after_s == after_s


@pytest.mark.parametrize("status", [401, 403, 404, 410, 422])
def test_refusals(status: int) -> None:
    assert read_answer(answer(status)) == answers.MeansRefused()


@pytest.mark.parametrize("status", [302, 500, 502, 503])
def test_doubts(status: int) -> None:
    assert isinstance(read_answer(answer(status)), answers.MeansUnknown)


def test_what_is_wrong_is_said_at_once() -> None:
    for repository in ("name", "a/b/c", "a/..?", ""):
        with pytest.raises(Misuse):
            Issues(repository, token="secret://git")
