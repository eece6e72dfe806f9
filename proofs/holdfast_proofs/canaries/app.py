"""Tools and tasks that leak a secret in every way a tool can; run by the canary test."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import signal
from pathlib import Path
from typing import Any
from urllib.parse import quote

import holdfast

PLACE = Path(os.environ.get("CANARY_PLACE", "/nowhere"))  # values and marks, not the journal's
KEYED = holdfast.Keyed(window_s=86_400, fingerprint="checked", refusals_stored=False)
ALL = "canary-*"


def spelled(value: str) -> dict[str, str]:
    """The ways a far end may echo a value; told a second time, not taken from the swap."""
    raw = value.encode()
    return {
        "plain": value,
        "base64": base64.b64encode(raw).decode(),
        "base64url": base64.urlsafe_b64encode(raw).decode().rstrip("="),
        "basic": base64.b64encode(b"user:" + raw + b":x").decode(),
        "url": quote(value, safe=""),
        "url_lower": quote(value, safe="").lower() if value.islower() else quote(value),
        "hex": raw.hex(),
        "HEX": raw.hex().upper(),
        "json": json.dumps(value),
        "json_twice": json.dumps(json.dumps({"token": value})),
        "repr": repr({"token": value}),
    }


def find_value(number: int) -> str:
    found: str = json.loads((PLACE / "values.json").read_text())[number]
    return found


def check(token: str, digest: str) -> None:
    if hashlib.sha256(token.encode()).hexdigest() != digest:
        raise RuntimeError("the tool was not given the secret")


@holdfast.tool(effect=KEYED, secrets={"token": ALL})
async def by_handle(token: str, digest: str) -> dict[str, bool]:
    check(token, digest)
    return {"got": True}


@holdfast.tool(effect=holdfast.Read(), secrets={"headers": ALL})
async def echo(headers: dict[str, Any], digest: str) -> Any:
    value = headers["Authorization"].removeprefix("Bearer ")
    check(value, digest)
    return {"as": spelled(value), value: "as a key", "deep": [[{"in": f"({value})"}]]}


@holdfast.tool(effect=KEYED)
async def note(text: str) -> int:
    """Declares no secret: a handle in its text is text."""
    return text.count("secret://canary-")


@holdfast.tool(effect=holdfast.Read(), secrets={"token": ALL})
async def raises(token: str, before: int) -> None:
    raise ValueError("x" * before + token + base64.b64encode(token.encode()).decode())


@holdfast.tool(effect=holdfast.Idempotent(), secrets={"token": ALL})
async def refuses(token: str) -> None:
    raise holdfast.Refused({"status": 402, "sent": spelled(token)})


@holdfast.tool(effect=KEYED, secrets={"token": ALL})
def in_thread(token: str, digest: str) -> Any:
    check(token, digest)
    return spelled(token)


@holdfast.tool(effect=holdfast.Unrepeatable(max_delay_s=0.01), secrets={"token": ALL})
def in_child(token: str, digest: str) -> Any:
    check(token, digest)
    seen = Path("/proc/self/cmdline").read_bytes() + Path("/proc/self/environ").read_bytes()
    if token.encode() in seen:
        raise RuntimeError("a secret in the words or the environment of a child")
    return spelled(token)


@holdfast.tool(effect=holdfast.Unrepeatable(max_delay_s=0.01), secrets={"token": ALL})
def refuses_in_child(token: str) -> None:
    raise holdfast.Refused({"sent": spelled(token)})


@holdfast.tool(effect=KEYED, http_only=True, secrets={"token": ALL})
async def over_http(call: holdfast.Call, path: str, token: str) -> Any:
    answer = await call.http.post(
        f"{(PLACE / 'url').read_text()}{path}",
        json={"token": token, "basic": base64.b64encode(token.encode()).decode()},
        headers={"X-Token": base64.urlsafe_b64encode(token.encode()).decode()},
    )
    return answer.json()


@holdfast.tool(effect=holdfast.Transactional(), secrets={"token": ALL})
async def own_table(token: str) -> holdfast.Apply:
    rows = [("INSERT INTO canary VALUES (?)", [text]) for text in spelled(token).values()]
    made = ("CREATE TABLE IF NOT EXISTS canary (seen TEXT)", ())
    return holdfast.Apply([made, *rows], result=token)


@holdfast.tool(effect=KEYED, secrets={"token": ALL})
async def die(token: str, number: int, dies: bool) -> str:
    """Kills its worker once, with the secret at hand."""
    mark = PLACE / f"died-{number}"
    if dies and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return token


@holdfast.tool(effect=holdfast.Unrepeatable(max_delay_s=0.01), secrets={"token": ALL})
async def doubt(token: str) -> None:
    raise ConnectionError(f"reset while sending {token} and {token.encode().hex()}")


@holdfast.task
async def leaks(run: holdfast.Run, number: int, digest: str, dies: bool) -> Any:
    handle = f"secret://canary-{number}"
    seen: list[Any] = [
        await run.call(by_handle, token=handle, digest=digest),
        await run.call(echo, headers={"Authorization": f"Bearer {handle}"}, digest=digest),
    ]
    seen.append(await run.call(note, text=json.dumps(seen)))
    failing: list[tuple[holdfast.Tool[..., Any], dict[str, Any]]] = [
        (raises, {"before": 10}),
        (raises, {"before": 1_985}),
        (refuses, {}),
        (refuses_in_child, {}),
        (over_http, {"path": "/refuse"}),
    ]
    for tool, args in failing:
        try:
            await run.call(tool, token=handle, **args)
        except (holdfast.Refused, holdfast.ToolFailed) as error:
            seen.append(str(error))
    for tool in (in_thread, in_child):
        seen.append(await run.call(tool, token=handle, digest=digest))
    seen.append(await run.call(over_http, token=handle, path="/echo"))
    seen.append(await run.call(own_table, token=handle))
    seen.append(await run.call(die, token=handle, number=number, dies=dies))
    value = find_value(number)
    seen.append({"saw": value in repr(seen) or repr(value)[1:-1] in repr(seen)})
    seen.append(await run.call(note, text=json.dumps(seen)))
    answer = await run.approve(f"go on with {value}?", token=spelled(value))
    return [*seen, answer.note, spelled(value)]


@holdfast.task
async def doubts(run: holdfast.Run, number: int) -> Any:
    found = await run.call(doubt, token=f"secret://canary-{number}")
    raise RuntimeError(f"{found} {find_value(number)}")


tasks = [leaks, doubts]
