"""`holdfast worker`: this process supervises, a second one works.

The parent opens no journal, no keys and no app, so it has nothing to lose and no tool can kill it;
it only has our own code loaded, so that it can replace a dead worker at once. The worker process
gets its order as one JSON text without secrets; it reads the settings file itself on every start.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TextIO

from holdfast.errors import BadInput
from holdfast.host.log import Log
from holdfast.layout.journal_location import journal_path
from holdfast.layout.settings import find_settings
from holdfast.runtime.engine.supervisor import Warm, supervise

CLOSE_S = 10.0  # beyond the calls' grace: for writing what they returned and closing the journal


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a worker process is to do."""

    app: str
    journal: str
    config: str = ""
    overrides: Mapping[str, object] = field(default_factory=dict[str, object])
    health_port: int | None = None
    backup_every: str = ""


def run_worker(order: Order) -> int:
    """Serve until asked to stop; the exit code."""
    log = open_log()
    # Report wrong settings here, once, and not in a worker that would restart.
    settings = find_settings(journal_path(order.journal), config=order.config, overrides=order.overrides)
    if order.backup_every:
        from holdfast.backup.upkeep.scheduled import parse_every
        from holdfast.layout.agent_home import load_home

        parse_every(order.backup_every)
        load_home(journal_path(order.journal).parent)
    from holdfast.app import worker_process  # it reads an order with this module

    text = json.dumps(asdict(order))

    def work() -> int:
        if not sys.flags.safe_path:
            del sys.path[0]  # as with -P: nothing is imported from where we were started
        return worker_process.main(text)

    return supervise(
        [sys.executable, "-P", "-m", "holdfast.app.worker_process", text],
        warm=Warm(work),
        grace_s=settings.grace_s + CLOSE_S,
        say=lambda line: log.event("supervisor", text=line),
    )


def parse_order(text: str) -> Order:
    """The order as the parent wrote it. Raises BadInput."""
    try:
        return Order(**json.loads(text))
    except (ValueError, TypeError, RecursionError) as error:
        raise BadInput(
            f"the order for this worker process cannot be read: {error}",
            hint="start a worker with `holdfast worker APP`",
        ) from error


def open_log() -> Log:
    """A worker's events: JSON lines for programs, the same fields in words on a terminal."""
    return Log(Readable(sys.stderr)) if sys.stderr.isatty() else Log.to_stderr()


class Readable(io.StringIO):
    """A stream for host.log.Log: time, event, then the fields."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream

    def write(self, text: str, /) -> int:
        fields = json.loads(text)
        at, event = str(fields.pop("at")), str(fields.pop("event"))
        words = [f"{name}={_shown(value)}" for name, value in fields.items()]
        return self._stream.write(" ".join([at[11:19], event, *words]) + "\n")

    def flush(self) -> None:
        self._stream.flush()


def _shown(value: object) -> str:
    """As JSON, which escapes control characters; plain words without quotes."""
    text = json.dumps(value)
    plain = isinstance(value, str) and text == f'"{value}"' and value and " " not in value
    return str(value) if plain else text
