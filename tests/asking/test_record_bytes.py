"""The stored bytes of every kind of record, as today's code writes them: names, order and form never change.

Times, ids and digests differ from run to run and are replaced by a letter; all else is compared
byte by byte. A line that changes here is a change of the stored format.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from holdfast.core.clock import SystemClock, SystemEntropy
from holdfast.core.journal_address import file_at
from holdfast.errors import HoldfastError
from holdfast.identity.journal_keys.keyfile import load_or_create
from holdfast.journal.bind import journal_at
from holdfast.journal.records import RecordKind, TaskState
from holdfast.journal.seal import DataKeySealer, unpacked
from holdfast.testing.lab import Lab, Scripted, wait_state

MakeModel = Callable[..., holdfast.Model]

GOLDEN = Path(__file__).with_name("record_bytes.txt")
_VARYING = (
    (rb'"(value|session|boot|digest|id|head|route|body_sha256|binding|manifest)":("[^"]*"|[0-9.e-]+)', rb'"\1":*'),
    (rb'"(question|worker|reply|request)":"[^"]*"', rb'"\1":*'),
    (rb'"trace":"(\\.|[^"\\])*"', b'"trace":*'),
    (rb"[0-9a-f]{12,}", b"H"),
    (rb"\b\d{10,}\b", b"N"),
    (rb'"(quiet_in_ms|cached_tokens|cold_tokens)":\d+', rb'"\1":N'),  # tokens: the model may know the prefix
)


async def test_every_kind_of_record_is_stored_as_ever(
    lab: Lab, model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored: list[str] = []
    seal = DataKeySealer.seal

    def watch(self: DataKeySealer, plain: bytes, place: bytes, nonce: bytes = b"") -> bytes:
        if place.startswith(b"record\0"):
            _, _, _, kind, ordinal, _ = place.split(b"\0")
            stored.append(f"{RecordKind(int(kind)).name} {ordinal.decode()} {_steady(unpacked(plain))}")
        return seal(self, plain, place, nonce)

    monkeypatch.setattr(DataKeySealer, "seal", watch)
    keyed = holdfast.Keyed(window_s=86_400, fingerprint="checked", refusals_stored=True, max_delay_s=0)
    done = Scripted(keyed, {"id": 1}, name="done")
    refused = Scripted(keyed, holdfast.Refused({"code": "no"}), name="refused")
    unsent = Scripted(keyed, holdfast.NotSent("no route"), {"id": 2}, name="unsent")
    busy = Scripted(keyed, holdfast.Busy(0.001), {"id": 3}, name="busy")
    failing = Scripted(holdfast.Read(), ValueError("bad"), name="failing")
    doubtful = Scripted(holdfast.Unrepeatable(max_delay_s=0), OSError("cut"), name="doubtful")
    chat = model(settings={"max_tokens": 100})
    tools = [one.tool for one in (done, refused, unsent, busy, failing, doubtful)]

    @holdfast.task
    async def trip(run: holdfast.Run, where: str) -> str:
        for take in (run.now, run.random, run.uuid):
            take()
        run.version("v", 2)
        await run.sleep(0.001)
        (run.scratch.path / "note").write_text("hello")
        await run.gather(run.call(done.tool, cents=42), run.call(done.tool, cents=43))
        for one in (refused, unsent, busy, failing):
            try:
                await run.call(one.tool, to="Ada")
            except HoldfastError:
                continue
        await run.note("the trip begins")
        run.plan.add("look")
        talk = run.talk(system="Be brief.")
        talk.say("hello")
        await run.ask(chat, talk)
        approval = await run.approve("go on?", cents=1)
        assert approval
        await run.call(doubtful.tool)
        return where

    async with lab.open(trip, tools=tools) as hf:
        handle = await hf.submit(trip, where="LIS", request_id="trip-1")
        await wait_state(handle, TaskState.WAITING)
        (asked,) = [ordinal for ordinal, note in (await handle.view()).notes.items() if note.what == "approve"]
        await hf.approve(handle.id, asked, granted=True, by="Ada")
        await wait_state(handle, TaskState.PARKED)
        view = await handle.view()
        (parked,) = [one.ordinal for one in view.steps.values() if one.ending is None]
        await hf.settle(handle.id, parked, "done", by="Ada", note="seen", result={"ok": True})
        await wait_state(handle, TaskState.SUCCEEDED)
    async with lab.open(serve=False) as hf:
        await hf.submit("trip", where="BER", request_id="trip-2")
    keys = load_or_create(lab.folder / "keys.json", journal_exists=True, entropy=SystemEntropy())
    await journal_at(file_at(lab.journal)).restore(keys=keys, clock=SystemClock())
    kinds = {line.split()[0] for line in stored}
    assert kinds == {kind.name for kind in RecordKind}
    assert sorted(stored) == GOLDEN.read_text().splitlines()  # sorted: branches of a gather overtake each other


def _steady(raw: bytes) -> str:
    for pattern, put in _VARYING:
        raw = re.sub(pattern, put, raw)
    return raw.decode()
