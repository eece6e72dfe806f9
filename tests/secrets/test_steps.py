"""Steps with secrets: pinned, resolved when sent, swapped back; rotations, removals, replays."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.core.step import StepState
from holdfast.errors import Misuse, SecretInInput, SecretNotFound
from holdfast.identity.journal_keys.secret_file import SecretFile
from holdfast.journal.records import TaskState
from holdfast.runtime.secrets import Secrets
from holdfast.testing.lab import Lab, Scripted, hang, look_dead, wait_state, wait_step, wait_until

OpenStore = Callable[[], SecretFile]
KEYED = holdfast.Keyed(window_s=86_400, fingerprint="checked", refusals_stored=False)
ONCE = holdfast.Unrepeatable(max_delay_s=0.01)
OLD, NEW = "correct-horse-battery", "staple-engine-trumpet"
HANDLE = "secret://billing"


@pytest.fixture
def store(open_store: OpenStore) -> SecretFile:
    made = open_store()
    made.set("billing", OLD)
    return made


def calls(tool: holdfast.Tool[..., Any], **args: Any) -> holdfast.TaskType:
    @holdfast.task(name="one")
    async def one(run: holdfast.Run) -> Any:
        return await run.call(tool, **args)

    return one


def scripted(effect: Any, *acts: Any, secrets: Any = None, **options: Any) -> Scripted:
    """A tool that does as told, whose argument `token` may name the secret."""
    declared = {"token": "billing"} if secrets is None else secrets
    return Scripted(effect, *acts, name="pay", secrets=declared, **options)


def tokens(tool: Scripted) -> list[Any]:
    return [call.args["token"] for call in tool.calls]


async def test_the_tool_gets_the_value_and_the_record_the_handle(lab: Lab, store: SecretFile) -> None:
    pay = scripted(KEYED, {"seen": f"Bearer {OLD}"})
    task = calls(pay.tool, token=f"Bearer {HANDLE}")
    async with lab.open(task) as hf:
        handle = await hf.submit(task)
        assert await handle.result(30) == {"seen": f"Bearer {HANDLE}"}
        step = (await handle.view()).steps["1"]
    assert tokens(pay) == [f"Bearer {OLD}"]
    assert step.args == {"token": f"Bearer {HANDLE}"}
    assert step.body["secrets"] == {"billing": 1}


async def test_a_secret_that_is_not_set_parks_before_anything_is_planned(lab: Lab, open_store: OpenStore) -> None:
    """Not an error that code could catch: once it is set, the code must go the same way."""
    pay = scripted(KEYED, "paid")
    task = calls(pay.tool, token=HANDLE)
    async with lab.open(task) as hf:
        handle = await hf.submit(task)
        with pytest.raises(holdfast.TaskParked, match=r"secret://billing is not set; `holdfast"):
            await handle.result(30)
        assert (await handle.view()).steps == {}
        open_store().set("billing", OLD)
        await hf.retry(handle.id)
        await wait_state(handle, TaskState.SUCCEEDED)
    assert tokens(pay) == [OLD]


async def test_what_a_tool_does_not_declare_is_never_resolved(lab: Lab, store: SecretFile) -> None:
    """A model that was talked into naming a secret gets it sent to nobody."""
    mail = scripted(KEYED, "sent", secrets={"key": "mail-*"})
    inside = calls(mail.tool, token=f"see {HANDLE}", body={"deep": [HANDLE]})
    async with lab.open(inside) as hf:
        await (await hf.submit(inside)).result(30)
    assert mail.calls[0].args == {"token": f"see {HANDLE}", "body": {"deep": [HANDLE]}}
    for args in ({"token": HANDLE}, {"key": f"x {HANDLE}"}):
        task = calls(mail.tool, **args)
        async with lab.open(task) as hf:
            with pytest.raises(holdfast.TaskParked, match="may not use secret://billing"):
                await (await hf.submit(task)).result(30)
    assert len(mail.calls) == 1


async def test_a_value_in_an_argument_is_refused(lab: Lab, store: SecretFile) -> None:
    pay = scripted(KEYED, "paid")
    for text in (OLD, OLD.encode().hex(), f"x {OLD}"):
        task = calls(pay.tool, token={"deep": [text]})
        async with lab.open(task) as hf:
            handle = await hf.submit(task)
            with pytest.raises(holdfast.TaskParked, match="contains the value of secret://billing"):
                await handle.result(30)
            assert (await handle.view()).steps == {}
    assert pay.calls == []


async def test_a_value_is_not_taken_with_a_task(lab: Lab, store: SecretFile) -> None:
    task = calls(scripted(KEYED, "paid").tool, token=HANDLE)
    async with lab.open(task) as hf:
        with pytest.raises(holdfast.HoldfastError, match="would hold the value") as caught:
            await hf.submit("elsewhere", text=[f"use {OLD}"])
        assert caught.value.code == "secret-in-input"
        with pytest.raises(holdfast.HoldfastError, match="would hold the value"):
            await hf.submit("one", request_id=f"order {OLD}")


async def test_after_a_rotation_a_doubtful_step_sends_what_it_recorded(lab: Lab, store: SecretFile) -> None:
    """Another secret may be another body: the same key must not come with two."""
    pay = scripted(KEYED, hang, "paid")
    task = calls(pay.tool, token=HANDLE)
    async with lab.open(task) as hf:
        handle = await hf.submit(task)
        await pay.entered.wait()
        store.rotate("billing", NEW)
        look_dead(hf)
        async with lab.open(task):
            await wait_state(handle, TaskState.SUCCEEDED)
    assert tokens(pay) == [OLD, OLD]


async def test_a_new_step_takes_the_new_version_without_a_restart(lab: Lab, store: SecretFile) -> None:
    pay = scripted(KEYED, "paid")
    task = calls(pay.tool, token=HANDLE)
    async with lab.open(task) as hf:
        first = await hf.submit(task)
        await first.result(30)
        store.rotate("billing", NEW)
        second = await hf.submit(task)
        await second.result(30)
        steps = [(await one.view()).steps["1"] for one in (first, second)]
    assert tokens(pay) == [OLD, NEW]
    assert steps[0].args == steps[1].args
    assert steps[0].fingerprint != steps[1].fingerprint, "it covers handle and version"


async def test_a_doubtful_step_whose_version_is_dropped_asks(lab: Lab, store: SecretFile) -> None:
    pay = scripted(KEYED, hang, "paid")
    task = calls(pay.tool, token=HANDLE)
    async with lab.open(task) as hf:
        handle = await hf.submit(task)
        await pay.entered.wait()
        store.rotate("billing", NEW, drop_old=True)
        look_dead(hf)
        async with lab.open(task) as second:
            step = await wait_step(handle, "1", StepState.PARKED)
            assert step.question.startswith("may it be sent with another secret?")
            await wait_state(handle, TaskState.PARKED)
            assert tokens(pay) == [OLD]
            # A person who knows that it did not happen lets it run, with the active version.
            await _settle(second, handle.id)
            await wait_state(handle, TaskState.SUCCEEDED)
    assert tokens(pay) == [OLD, NEW]


async def test_a_lookup_comes_before_the_question(lab: Lab, store: SecretFile) -> None:
    asked = scripted(holdfast.Queryable(max_delay_s=0.01), hang)
    asked.finds(holdfast.Found({"echo": NEW}, args={"token": NEW}))
    task = calls(asked.tool, token=HANDLE)
    async with lab.open(task) as hf:
        handle = await hf.submit(task)
        await asked.entered.wait()
        store.rotate("billing", NEW, drop_old=True)
        look_dead(hf)
        async with lab.open(task):
            await wait_state(handle, TaskState.SUCCEEDED)
        assert (await handle.view()).outcome["result"] == {"echo": HANDLE}
    assert [one.args for one in asked.lookups] == [{"token": NEW}]
    assert tokens(asked) == [OLD]


async def test_a_step_that_was_not_sent_takes_the_version_there_is(lab: Lab, store: SecretFile) -> None:
    """Nothing left with the old one, so nothing can contradict the new one."""
    pay = scripted(KEYED, "paid", needs_approval=True)
    task = calls(pay.tool, token=HANDLE)
    async with lab.open(task) as hf:
        handle = await hf.submit(task)
        await wait_state(handle, TaskState.WAITING)
        store.rotate("billing", NEW, drop_old=True)
        await hf.approve(handle.id, "1", granted=True)
        await wait_state(handle, TaskState.SUCCEEDED)
    assert tokens(pay) == [NEW]


async def test_a_removed_secret_is_not_sent_and_asks(lab: Lab, store: SecretFile) -> None:
    pay = scripted(KEYED, "paid", needs_approval=True)
    task = calls(pay.tool, token=HANDLE)
    async with lab.open(task) as hf:
        handle = await hf.submit(task)
        await wait_state(handle, TaskState.WAITING)
        store.remove("billing")
        await hf.approve(handle.id, "1", granted=True)
        step = await wait_step(handle, "1", StepState.PARKED)
        assert step.question.startswith("which secret is meant?")
        await wait_state(handle, TaskState.PARKED)
        assert pay.calls == []
        store.set("billing", NEW)
        await _settle(hf, handle.id)
        await wait_state(handle, TaskState.SUCCEEDED)
    assert tokens(pay) == [NEW]


async def test_a_secret_removed_between_start_and_send_was_not_sent(
    lab: Lab, store: SecretFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.runtime.step.sending import Sender

    begin = Sender.begin

    async def begin_then_remove(self: Sender, *words: Any, **options: Any) -> bool:
        done = await begin(self, *words, **options)
        if store.find_current("billing") is not None:
            store.remove("billing")
        return done

    monkeypatch.setattr(Sender, "begin", begin_then_remove)
    pay = scripted(ONCE, "paid")
    task = calls(pay.tool, token=HANDLE)
    async with lab.open(task) as hf:
        handle = await hf.submit(task)
        await wait_state(handle, TaskState.PARKED)
        step = (await handle.view()).steps["1"]
    assert pay.calls == []
    assert step.error["reason"] == "not sent"
    assert "version 1 of secret://billing" in step.error["text"]
    assert step.question.startswith("which secret is meant?")


async def test_a_replay_after_an_echo_does_not_diverge(lab: Lab, store: SecretFile) -> None:
    """The first run saw handles, so its replay asks for the very same calls."""
    echo = scripted(holdfast.Read(), {"as": [OLD, OLD.encode().hex()], OLD: 1})
    note = Scripted(KEYED, hang, "noted", name="note")
    seen: list[str] = []

    @holdfast.task
    async def two(run: holdfast.Run) -> Any:
        found = await run.call(echo.tool, token=HANDLE)
        seen.append(json.dumps(found))
        return await run.call(note.tool, text=json.dumps(found))

    async with lab.open(two) as hf:
        handle = await hf.submit(two)
        await note.entered.wait()
        store.rotate("billing", NEW, drop_old=True)  # the echo's value is not known any more
        look_dead(hf)
        async with lab.open(two):
            await wait_state(handle, TaskState.SUCCEEDED)
    assert len(echo.calls) == 1
    assert seen[0] == seen[1] == json.dumps({"as": [HANDLE, HANDLE], HANDLE: 1})


async def test_a_step_recorded_before_its_secret_was_known_is_replayed(lab: Lab, open_store: OpenStore) -> None:
    first = scripted(KEYED, "done", secrets={})
    second = Scripted(KEYED, hang, "done", name="second")

    @holdfast.task
    async def two(run: holdfast.Run) -> Any:
        await run.call(first.tool, text=OLD)
        return await run.call(second.tool)

    async with lab.open(two) as hf:
        handle = await hf.submit(two)
        await second.entered.wait()
        open_store().set("billing", OLD)
        look_dead(hf)
        async with lab.open(two):
            await wait_state(handle, TaskState.SUCCEEDED)
    assert len(first.calls) == 1


async def test_other_arguments_are_still_noticed(lab: Lab, store: SecretFile) -> None:
    """The fingerprint covers handle and version: another handle is another call."""
    store.set("other", NEW)
    pay = scripted(KEYED, "paid", secrets={"token": ("billing", "other")})
    stop = Scripted(KEYED, hang, name="stop")
    named = [HANDLE, "secret://other"]

    @holdfast.task
    async def two(run: holdfast.Run) -> Any:
        await run.call(pay.tool, token=named.pop(0))
        return await run.call(stop.tool)

    async with lab.open(two) as hf:
        handle = await hf.submit(two)
        await stop.entered.wait()
        look_dead(hf)
        async with lab.open(two):
            await wait_state(handle, TaskState.PARKED)
            assert "with other arguments" in (await handle.view()).rested["why"]


async def test_a_tool_that_stops_declaring_it_sends_nothing(lab: Lab, store: SecretFile) -> None:
    """Changed code: a handle must not go out as text in the place of a secret."""
    pay = scripted(KEYED, hang, needs_approval=True)
    later = scripted(KEYED, "paid", secrets={"other": "billing"}, needs_approval=True)
    later.tool.version = pay.tool.version
    first, second = calls(pay.tool, token=HANDLE), calls(later.tool, token=HANDLE)
    async with lab.open(first) as hf:
        handle = await hf.submit(first)
        await wait_state(handle, TaskState.WAITING)
    async with lab.open(second) as hf:
        await hf.approve(handle.id, "1", granted=True)
        step = await wait_step(hf.task(handle.id), "1", StepState.PARKED)
    assert step.question.startswith("what is to be sent?")
    assert later.calls == []


async def test_a_lookup_of_a_tool_that_stops_declaring_it_cannot_say(lab: Lab, store: SecretFile) -> None:
    first = scripted(holdfast.Queryable(max_delay_s=0.01), hang)
    first.finds(holdfast.Absent())
    later = scripted(holdfast.Queryable(max_delay_s=0.01), "paid", secrets={"token": "other", "more": "billing"}).finds(
        holdfast.Absent()
    )
    one, two = calls(first.tool, token=HANDLE), calls(later.tool, token=HANDLE)
    async with lab.open(one) as hf:
        handle = await hf.submit(one)
        await first.entered.wait()
        look_dead(hf)
        async with lab.open(two):
            step = await wait_step(handle, "1", StepState.PARKED)
    assert later.lookups == []
    assert later.calls == []
    assert "no longer declares secret://billing" in json.dumps(step.evidence)


async def test_only_some_arguments_of_several_hold_handles(lab: Lab, store: SecretFile) -> None:
    store.set("other", NEW)
    declared = {"token": "billing", "more": ("oth*", "billing"), "left_out": "billing"}
    pay = scripted(KEYED, "paid", secrets=declared)
    args = {"token": HANDLE, "more": ["secret://other", HANDLE, 7], "plain": f"in {HANDLE}"}
    task = calls(pay.tool, **args)
    async with lab.open(task) as hf:
        await (await hf.submit(task)).result(30)
    assert pay.calls[0].args == {"token": OLD, "more": [NEW, OLD, 7], "plain": f"in {HANDLE}"}


async def test_scopes_say_what_is_missing(lab: Lab, open_store: OpenStore) -> None:
    pay = scripted(KEYED, {"echo": OLD})
    async with lab.open(tools=[pay.tool]) as hf, hf.scope("web") as scope:
        with pytest.raises(holdfast.TaskParked, match="is not set"):
            await scope.call(pay.tool, slot="a", token=HANDLE)
        open_store().set("billing", OLD)
        assert await scope.call(pay.tool, slot="a", token=HANDLE) == {"echo": HANDLE}
        with pytest.raises(SecretInInput):
            await scope.call(pay.tool, slot=f"b-{OLD}", token=HANDLE)
        with pytest.raises(SecretInInput):
            async with hf.scope(f"web {OLD}"):
                pass
    assert tokens(pay) == [OLD]


async def test_a_known_value_of_a_tool_that_declares_nothing_is_swapped(lab: Lab, store: SecretFile) -> None:
    """Whatever way it came into the process."""
    task = calls(Scripted(holdfast.Read(), {"env": OLD}, name="leak").tool)
    async with lab.open(task) as hf:
        assert await (await hf.submit(task)).result(30) == {"env": HANDLE}


async def test_notices_and_pages_pass_the_swap(lab: Lab, store: SecretFile, tmp_path: Path) -> None:
    """Also a notice that was written before its secret was known."""
    from holdfast.core.notices import Notice

    told = tmp_path / "told"
    command = ("/bin/sh", "-c", f"cat >> {told}")
    async with lab.open(notice_command=command) as hf:
        note = Notice(notice_id="n1", kind="parked", text=f"it says {OLD}")
        await hf.journal.add_notice(note)
        await wait_until(lambda: _is_told(told))
    assert HANDLE in told.read_text()
    assert OLD not in told.read_text()


async def test_a_contradiction_names_its_source_without_a_value(lab: Lab, store: SecretFile) -> None:
    """A notice's id is a clear column of the journal."""
    pay = scripted(KEYED, holdfast.Refused("no money"))
    task = calls(pay.tool, token=HANDLE)
    async with lab.open(task) as hf:
        handle = await hf.submit(task)
        await wait_state(handle, TaskState.FAILED)
        await hf.evidence(task_id=handle.id, ordinal="1", result=OLD, source=f"hook {OLD}")
        notices = await hf.journal.pending_notices(limit=10)
    assert [one.kind for one in notices] == ["contradiction"]
    assert OLD not in repr(notices)
    assert OLD.encode() not in b"".join(path.read_bytes() for path in lab.folder.rglob("*") if path.is_file())


async def _is_told(path: Path) -> bool:
    return path.exists() and path.read_text().endswith("\n")


def test_the_active_value_for_the_runtime_itself(store: SecretFile) -> None:
    known = Secrets(store)
    assert known.get_value("billing") == OLD
    store.rotate("billing", NEW)
    assert known.get_value("billing") == NEW
    with pytest.raises(SecretNotFound):
        known.get_value("gone")
    assert OLD not in repr(known)


def test_only_arguments_that_exist_can_be_declared() -> None:
    with pytest.raises(Misuse, match="no argument 'key'"):

        @holdfast.tool(effect=KEYED, secrets={"key": "billing"})
        async def pay(token: str) -> None:
            del token


async def _settle(hf: holdfast.Holdfast, task_id: str) -> None:
    import asyncio

    while True:
        try:
            await hf.settle(task_id, "1", "run", by="ada")
            return
        except holdfast.HoldfastError as error:
            if error.code != "too-early":
                raise
            await asyncio.sleep(0.02)


async def test_a_traceback_holds_the_handle_of_a_secret(lab: Lab, store: SecretFile) -> None:
    """Of the task's own code and of a tool: a message and a line of source may quote the value."""

    @holdfast.task
    async def task_raises(run: holdfast.Run) -> None:
        raise ValueError(OLD)

    pay = scripted(ONCE, ValueError(OLD))
    step_raises = calls(pay.tool, token=HANDLE)
    async with lab.open(task_raises, step_raises) as hf:
        failed, parked = await hf.submit(task_raises), await hf.submit(step_raises)
        await wait_state(failed, TaskState.FAILED)
        await wait_state(parked, TaskState.PARKED)
        end, failure = (await failed.view()).end, (await parked.view()).steps["1"].failure
    for trace in (end.trace, failure.trace):
        assert (OLD in trace, HANDLE in trace) == (False, True)
