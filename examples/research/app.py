"""A research agent: reads sources in parallel, keeps notes as files, asks before it publishes.

It runs offline as `python examples/offline.py research`, and against a real provider by the same
code: see examples/README.md.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import holdfast

SERVICE = os.environ.get("SERVICE_URL", "http://127.0.0.1:8404")
LIBRARY = Path(__file__).parent / "library"

Json = dict[str, Any]

model = holdfast.Model(
    os.environ.get("MODEL_NAME", "model-1"),
    [
        holdfast.Endpoint(
            name="provider",
            url=os.environ.get("MODEL_URL", "http://127.0.0.1:8403/v1"),
            wire="anthropic" if os.environ.get("MODEL_WIRE") == "anthropic" else "openai",
            key="secret://provider",
        )
    ],
    settings={"max_tokens": 1_000},
)


@holdfast.tool(effect=holdfast.Read())
async def list_sources(call: holdfast.Call) -> list[str]:
    """The sources of the library."""
    return sorted(path.stem for path in LIBRARY.glob("*.txt"))


@holdfast.tool(effect=holdfast.Read())
async def read_source(call: holdfast.Call, name: str) -> str:
    """Read a source; a copy is kept beside the notes.

    Args:
        name: as `list_sources` has it
    """
    if name not in {path.stem for path in LIBRARY.glob("*.txt")}:
        raise LookupError(f"there is no source {name!r}")
    text = (LIBRARY / f"{name}.txt").read_text()
    folder = call.scratch / "sources"
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.txt").write_text(text)
    return text


@holdfast.tool(effect=holdfast.Read())
async def write_report(call: holdfast.Call, text: str) -> Json:
    """Keep the report; it names every source that was read."""
    read = sorted(path.stem for path in (call.scratch / "sources").glob("*.txt"))
    (call.scratch / "report.md").write_text(f"{text}\n\nSources: {', '.join(read)}\n")
    return {"sources": read}


# Published once: the service dedupes by the key. A person reads the report first.
@holdfast.tool(
    effect=holdfast.Keyed(window_s=86_400, fingerprint="checked", refusals_stored=True),
    http_only=True,
    needs_approval=True,
)
async def publish(call: holdfast.Call, title: str) -> Json:
    """Publish the report that was kept."""
    body = {"title": title, "text": (call.scratch / "report.md").read_text()}
    return (await call.http.post(f"{SERVICE}/effects", json=body)).json()


agent = holdfast.Agent(
    name="research",
    model=model,
    instructions="You answer questions from the library's sources alone. Read them, keep a report, "
    "publish it, then answer in one sentence.",
    tools=[list_sources, read_source, write_report, publish],
    scratch=True,
    max_turns=20,
)
app = holdfast.App([agent])
