"""In a shadow an effectful tool is answered by its sandbox or by a far end that records; never by the real one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.downstream.process import start_blocking
from holdfast.errors import Misuse, ShadowRefused
from holdfast.host.shadow import Shadow, ShadowPlan, open_shadow
from holdfast.host.shadowed import RECORDER

APP = """
import asyncio, json, os, sys, urllib.request
import holdfast

BANK = os.environ["BANK"]
KEYED = holdfast.Keyed(window_s=3_600, fingerprint="checked", refusals_stored=True)

async def sandboxed_charge(call: holdfast.Call, cents: int) -> str:
    return f"sandbox {cents} {len(call.effect_key)}"

@holdfast.tool(effect=KEYED, http_only=True, sandbox=sandboxed_charge)
async def charge(call: holdfast.Call, cents: int) -> str:
    return (await call.http.post(f"{BANK}/effects", json={"cents": cents})).json()["id"]

def sandboxed_label(text: str) -> str:
    return f"sandbox {text} {os.getpid() != int(os.environ['TOP'])}"

@holdfast.tool(sandbox=sandboxed_label)
def print_label(text: str) -> str:
    return urllib.request.urlopen(f"{BANK}/effects", data=b"{}").read().decode()

@holdfast.tool(effect=KEYED, http_only=True)
async def publish(call: holdfast.Call, text: str) -> str:
    return (await call.http.post(f"{BANK}/effects", json={"text": text})).json()["id"]

@holdfast.tool(effect=KEYED, attempts=1)
def own_client(call: holdfast.Call) -> str:
    headers = {"Idempotency-Key": call.effect_key}
    return json.load(urllib.request.urlopen(urllib.request.Request(f"{BANK}/effects", b"{}", headers)))["id"]

@holdfast.task
async def act(run: holdfast.Run) -> list:
    done = [await run.call(charge, cents=5), await run.call(print_label, text="a"), await run.call(publish, text="b")]
    return done

@holdfast.task
async def alone(run: holdfast.Run) -> str:
    return await run.call(own_client)

async def main() -> None:
    async with holdfast.open(sys.argv[1], tasks=[act, alone], settings=holdfast.Settings(pace=0.01)) as hf:
        print(json.dumps(await (await hf.submit(act)).result(60)))
        try:
            print(await (await hf.submit(alone)).result(60))
        except holdfast.TaskParked:
            print("parked")

if __name__ == "__main__":
    os.environ["TOP"] = str(os.getpid())
    asyncio.run(main())
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    path = tmp_path / "app.py"
    path.write_text(APP)
    return path


def run_in(shadow: Shadow, app: Path, more: dict[str, str]) -> list[Any]:
    words = (sys.executable, str(app), str(app.with_name("journal.db")))
    process = shadow.start(words, more={"PYTHONDONTWRITEBYTECODE": "1", **more}, cwd=app.parent)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err.decode()
    first, second = out.decode().splitlines()
    return [*json.loads(first), second]


def test_effects_in_a_shadow_reach_no_far_end_of_this_machine(app: Path, tmp_path: Path) -> None:
    with start_blocking("keyed") as bank, start_blocking("recording") as recorder:
        try:
            with open_shadow(ShadowPlan(folder=tmp_path / "shadow")) as shadow:
                found = run_in(shadow, app, {"BANK": bank.url, RECORDER: str(shadow.forward(recorder.port))})
        except ShadowRefused as refused:
            pytest.skip(str(refused))
        assert found == ["sandbox 5 36", "sandbox a True", "ef_000001", "parked"]
        assert bank.ledger().count == 0
        (recorded,) = recorder.ledger().effects
        assert recorded.key
        assert recorded.body == {
            "method": "POST",
            "host": f"127.0.0.1:{bank.port}",
            "path": "/effects",
            "sha256": recorded.body_sha256,
        }


def test_outside_of_a_shadow_a_variable_changes_nothing(app: Path) -> None:
    """Only the file that a shadow has at its root makes a process part of one."""
    with start_blocking("keyed") as bank, start_blocking("recording") as recorder:
        done = subprocess.run(
            (sys.executable, str(app), str(app.with_name("journal.db"))),
            env={**os.environ, "BANK": bank.url, RECORDER: str(recorder.port)},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert "sandbox" not in done.stdout
        assert bank.ledger().count >= 1
        assert recorder.ledger().requests == ()


async def named(call: holdfast.Call, cents: int) -> None: ...
async def short(call: holdfast.Call) -> None: ...
async def longer(cents: int, *, more: int) -> None: ...
async def takes_any(**all: Any) -> None: ...
def plain(cents: int) -> None: ...


@pytest.mark.parametrize(
    ("sandbox", "effect", "words"),
    [
        ("http://sandbox.example", holdfast.Idempotent(), "is not a function"),
        (holdfast.tool(named), holdfast.Idempotent(), "is not a function"),
        (plain, holdfast.Idempotent(), "it must be `async def`"),
        (short, holdfast.Idempotent(), "does not take the argument 'cents'"),
        (longer, holdfast.Idempotent(), "it requires 'more'"),
        (named, holdfast.Transactional(), "changes only the journal"),
    ],
)
def test_a_sandbox_that_cannot_answer_is_refused(sandbox: Any, effect: Any, words: str) -> None:
    async def charge(call: holdfast.Call, cents: int) -> None: ...

    with pytest.raises(Misuse, match=words):
        holdfast.tool(effect=effect, sandbox=sandbox)(charge)


def test_a_sandbox_that_takes_anything_is_taken_and_not_used() -> None:
    async def charge(call: holdfast.Call, cents: int) -> None: ...

    made = holdfast.tool(effect=holdfast.Idempotent(), sandbox=takes_any)(charge)
    assert made.function is charge
    assert made.version == holdfast.tool(effect=holdfast.Idempotent())(charge).version
