"""Working files of an agent's tools that cannot be kept: told, and nothing else goes wrong."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

import holdfast
from holdfast.core.rest import NeedsPerson, Suspended
from holdfast.journal.records import TaskState, TaskView
from holdfast.runtime.agent.loop import Loop
from holdfast.testing.lab import Lab, wait_state
from holdfast.testing.model_server.process import ModelServer, start_blocking
from holdfast.testing.model_server.script import Answer, Script, ScriptedCall
from holdfast_proofs.support.talks import request_of

MakeAgent = Callable[..., holdfast.Agent]
KEYED = holdfast.Keyed(window_s=86_400, fingerprint="checked", refusals_stored=False)


def calls(turn: int, *made: tuple[str, dict[str, Any]]) -> Answer:
    asked = tuple(ScriptedCall(tool=tool, arguments=arguments) for tool, arguments in made)
    return Answer(turn=turn, tool_calls=asked)


BAD_THEN_GOOD = Script(
    answers=(
        calls(1, ("write", {"name": "a"})),
        calls(2, ("leave", {}), ("write", {"name": "b"}), ("write", {"name": "c"})),
        calls(3, ("look", {})),
        Answer(text="Done."),
    )
)


@pytest.fixture(scope="module")
def _server() -> Iterator[ModelServer]:
    with start_blocking(BAD_THEN_GOOD) as server:
        yield server


@holdfast.tool(effect=KEYED)
async def write(call: holdfast.Call, name: str) -> str:
    (call.scratch / name).write_text(name)
    return f"wrote {name}"


@holdfast.tool(effect=holdfast.Read())
async def look(call: holdfast.Call) -> list[str]:
    return sorted(path.name for path in call.scratch.iterdir())


@holdfast.tool(effect=KEYED, name="leave")
async def leave_link(call: holdfast.Call) -> str:
    (call.scratch / "bad").symlink_to("/etc/hostname")
    return "left it"


@holdfast.tool(effect=KEYED, name="leave")
async def leave_pipe(call: holdfast.Call) -> str:
    os.mkfifo(call.scratch / "bad")
    return "left it"


@holdfast.tool(effect=holdfast.Read(), name="leave")
async def leave_and_fail(call: holdfast.Call) -> str:
    (call.scratch / "bad").symlink_to("/etc/hostname")
    raise RuntimeError("half done")


@holdfast.tool(effect=KEYED, name="leave")
async def leave_another_folder(call: holdfast.Call) -> str:
    moved = call.scratch.with_name("moved")
    call.scratch.rename(moved)
    call.scratch.symlink_to(moved)
    return "left it"


def told(view: TaskView, ordinal: str) -> list[tuple[str, bool]]:
    messages = request_of(view, ordinal).messages
    message = next(one for one in reversed(messages) if one["role"] == "tool")
    parts = cast("list[dict[str, Any]]", message["parts"])
    return [(str(part["text"]), bool(part.get("failed"))) for part in parts]


@pytest.mark.parametrize("bad", [leave_link, leave_pipe, leave_and_fail, leave_another_folder])
async def test_what_cannot_be_kept_is_told_and_the_loop_goes_on(
    lab: Lab, agent: MakeAgent, bad: holdfast.Tool[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.runtime.scratch.scratch.FULL_REST_S", 0.01)
    ada = agent(write, look, bad, scratch=True)
    async with lab.open(ada) as hf:
        handle = await hf.submit(ada, request="go")
        await wait_state(handle, TaskState.SUCCEEDED, TaskState.FAILED, TaskState.PARKED)
        view = await handle.view()
    assert view.outcome.get("result") == "Done.", view.outcome
    (text, failed), *siblings = told(view, "5")
    assert failed
    assert text.startswith("RuntimeError: half done" if bad is leave_and_fail else "left it")
    assert "the files that it left could not be kept: " in text
    assert [text.splitlines()[0] for text, _ in siblings] == ["wrote b", "wrote c"]
    # A sibling's file is there, or the model was told that it is not.
    lost = [name for name, (_, failed) in zip("bc", siblings, strict=True) if failed]
    kept = [name for name in "abc" if name not in lost]
    assert told(view, "7") == [(str(kept).replace("'", '"').replace(", ", ","), False)]


async def test_it_is_told_on_a_later_run_too(lab: Lab, agent: MakeAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run ends between the calls and the request that tells of them."""
    ada = agent(write, look, leave_link, scratch=True)

    whole = Loop._check_turns

    def parks(loop: Loop) -> None:
        if loop._turn == 2:
            raise Suspended(NeedsPerson("a test stops it here"))
        whole(loop)

    async with lab.open(ada) as hf:
        with monkeypatch.context() as patched:
            patched.setattr(Loop, "_check_turns", parks)
            handle = await hf.submit(ada, request="go")
            await wait_state(handle, TaskState.PARKED)
        await hf.retry(handle.id)
        assert await handle.result(20) == "Done."
        view = await handle.view()
    text, failed = told(view, "5")[0]
    assert (failed, text.startswith("left it\n[the files that it left could not")) == (True, True)
    assert all(step.closed for step in view.steps.values())
