"""What a worker says about itself: its health, and its figures in Prometheus' text form.

`/healthz` and `/metrics` on 127.0.0.1 are a very small server. It answers GET and nothing else, closes after each
answer, reads at most a few kilobytes for at most a few seconds. The Host header must name this machine (421 otherwise),
so that a web page in a browser cannot read it through a name that points to 127.0.0.1.

Every figure is explained in docs/reference/metrics.md. Figures of the whole journal are read when they are asked for;
figures of this process are counted since its start and fall to zero with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import platform
from contextlib import AsyncExitStack
from http import HTTPStatus
from typing import NamedTuple, Protocol

from holdfast.core.secret_handles import safe
from holdfast.core.step import StepState
from holdfast.errors import BadSettings, HoldfastError
from holdfast.host.log import Log
from holdfast.host.version import find_version
from holdfast.journal.contract import Journal
from holdfast.journal.durability import Kept
from holdfast.journal.records import TaskState
from holdfast.journal.unserved import find_unserved
from holdfast.runtime.engine.engine import Engine

ADDRESS = "127.0.0.1"
REQUEST_BYTES_MAX = 8_192
TIMEOUT_S = 5.0
CONNECTIONS_MAX = 32
_NAMES = ("127.0.0.1", "localhost", "[::1]")
_JSON = "application/json"
_METRICS = "text/plain; version=0.0.4; charset=utf-8"
NOTICES_COUNTED_MAX = 1_000
PREFIX = "holdfast_"
# name: (kind, help)
METRICS: dict[str, tuple[str, str]] = {
    "build_info": ("gauge", "1, with the version of Holdfast and of Python"),
    "up": ("gauge", "1 if /healthz answers 200"),
    "tasks": ("gauge", "tasks of the journal by state"),
    "tasks_unserved": ("gauge", "tasks that wait and that no live worker serves, by name and build"),
    "tasks_running_here": ("gauge", "tasks that this process runs now"),
    "steps_in_doubt": ("gauge", "open steps, among tasks that run here, whose outcome is unknown"),
    "notices_untold": ("gauge", "notices that are not sent yet; counted up to 1000"),
    "lease_left_seconds": ("gauge", "until the lease ends, if it is not renewed; 0 without one"),
    "journal_full": ("gauge", "1 while space is short and no new step starts"),
    "journal_broken": ("gauge", "1 after the disk reported a failed write"),
    "journal_standby": ("gauge", "1 if a synchronous standby has every commit; no line for a journal in a file"),
    "clock_behind_seconds": ("gauge", "how far the wall clock is behind the newest record"),
    "claims_total": ("counter", "tasks claimed by this process"),
    "runs_total": ("counter", "runs started by this process"),
    "runs_finished_total": ("counter", "runs that ended with a record: finished or rested"),
    "runs_fenced_total": ("counter", "runs that ended without one: fenced or aborted"),
    "commits_total": ("counter", "synced commits of this process"),
}


class Health(NamedTuple):
    """Whether the worker can work, and why not."""

    reasons: list[str]
    facts: dict[str, object]


class Source(Protocol):
    def health(self) -> Health: ...
    async def metrics(self) -> str: ...


class _Answer(NamedTuple):
    status: HTTPStatus
    kind: str
    body: str


async def serve_health(port: int, source: Source, stack: AsyncExitStack) -> int:
    """Listen until the stack unwinds; returns the port. Raises BadSettings if it is taken."""
    server = _Server(source)
    try:
        listening = await asyncio.start_server(
            server.answer, ADDRESS, port, limit=REQUEST_BYTES_MAX, backlog=CONNECTIONS_MAX
        )
    except (OSError, OverflowError) as error:
        raise BadSettings(
            f"--health-port {port}: cannot listen on {ADDRESS}: {error}",
            hint="choose another port, or 0 for a free one",
        ) from error
    stack.callback(listening.close)
    return int(listening.sockets[0].getsockname()[1])


class _Server:
    def __init__(self, source: Source) -> None:
        self._source = source
        self._open = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open <= CONNECTIONS_MAX:
                async with asyncio.timeout(TIMEOUT_S):
                    found = await self._judge(reader)
                    writer.write(_encoded(found))
                    await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # the client left, or never finished its request
        finally:
            self._open -= 1
            writer.close()

    async def _judge(self, reader: asyncio.StreamReader) -> _Answer:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return _plain(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        request, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
        words = request.split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return _plain(HTTPStatus.BAD_REQUEST)
        hosts = [
            value.strip().lower()
            for name, colon, value in (line.partition(":") for line in lines)
            if colon and name.lower() == "host"
        ]
        if len(hosts) != 1:
            return _plain(HTTPStatus.BAD_REQUEST)
        if not _is_ours(hosts[0]):
            return _plain(HTTPStatus.MISDIRECTED_REQUEST)
        if words[0] != "GET":
            return _plain(HTTPStatus.METHOD_NOT_ALLOWED)
        return await self._page(words[1].partition("?")[0])

    async def _page(self, path: str) -> _Answer:
        match path:
            case "/healthz":
                health = self._source.health()
                status = HTTPStatus.SERVICE_UNAVAILABLE if health.reasons else HTTPStatus.OK
                fields = {"ok": not health.reasons, "reasons": health.reasons, **health.facts}
                return _Answer(status, _JSON, json.dumps(fields) + "\n")
            case "/metrics":
                return _Answer(HTTPStatus.OK, _METRICS, await self._source.metrics())
            case _:
                return _plain(HTTPStatus.NOT_FOUND)


def _is_ours(host: str) -> bool:
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdigit() else host) in _NAMES


def _plain(status: HTTPStatus) -> _Answer:
    return _Answer(status, "text/plain; charset=utf-8", f"{status.phrase}\n")


def _encoded(answer: _Answer) -> bytes:
    body = safe(answer.body).encode()
    allow = "Allow: GET\r\n" if answer.status is HTTPStatus.METHOD_NOT_ALLOWED else ""
    head = (
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}\r\n"
        f"Content-Type: {answer.kind}\r\nContent-Length: {len(body)}\r\n"
        f"Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n{allow}"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + body


async def open_health(port: int, source: Source, stack: AsyncExitStack, log: Log) -> None:
    """`serve_health`, and say where."""
    port = await serve_health(port, source, stack)
    log.event("health", port=port, url=f"http://{ADDRESS}:{port}/healthz")


Figures = dict[str, list[tuple[dict[str, str], float]]]  # by name: labels and value


class Gauges:
    """Reads the figures of one engine and its journal."""

    def __init__(self, *, engine: Engine, journal: Journal) -> None:
        self._engine = engine
        self._journal = journal
        self._version = find_version()

    def health(self) -> Health:
        lease = self._engine.lease
        reasons: list[str] = []
        if lease is None or lease.lost or lease.left_ms() <= 0:
            reasons.append("this worker holds no lease")
        if self._journal.broken:
            reasons.append(f"the journal is not writable: {self._journal.broken}")
        if self._journal.full:
            reasons.append("no space is left for the journal: no new step starts")
        facts: dict[str, object] = {
            "session": "" if lease is None else lease.session.session_id,
            "lease_left_s": self._lease_left_s(),
            "running": self._engine.active,
            "version": self._version,
        }
        return Health(reasons, facts)

    async def metrics(self) -> str:
        return render({**build_info(), **await self.figures()})

    async def figures(self) -> Figures:
        counts = self._engine.counts
        own: dict[str, float] = {
            "up": not self.health().reasons,
            "tasks_running_here": self._engine.active,
            "steps_in_doubt": self._steps_in_doubt(),
            "lease_left_seconds": self._lease_left_s(),
            "journal_full": self._journal.full,
            "journal_broken": bool(self._journal.broken),
            "clock_behind_seconds": self._journal.clock_behind_ms / 1000,
            "claims_total": counts["claims"],
            "runs_total": counts["runs"],
            "runs_finished_total": counts["finished"],
            "runs_fenced_total": counts["fenced"],
            "commits_total": self._journal.commits,
        }
        figures: Figures = {name: [({}, float(value))] for name, value in own.items()}
        durability = self._engine.durability
        if durability is not None and durability.kept is not Kept.ONE_DISK:
            figures["journal_standby"] = [({}, float(durability.kept is Kept.STANDBY))]
        # If the journal cannot be read, only its figures are missing.
        with contextlib.suppress(HoldfastError):
            tasks = await self._journal.count_tasks()
            figures["tasks"] = [({"state": state.value}, float(tasks.get(state, 0))) for state in TaskState]
            figures["tasks_unserved"] = [
                ({"name": one.name, **({"build": one.build} if one.build else {})}, float(one.tasks))
                for one in await find_unserved(self._journal, parked=True)
            ]
            untold = await self._journal.pending_notices(limit=NOTICES_COUNTED_MAX)
            figures["notices_untold"] = [({}, float(len(untold)))]
        return figures

    def _steps_in_doubt(self) -> int:
        return sum(
            1
            for view in self._engine.views()
            for step in view.steps.values()
            if step.step is not None
            and (step.state is StepState.UNKNOWN or (step.state is StepState.STARTED and step.step.epoch < view.epoch))
        )

    def _lease_left_s(self) -> float:
        lease = self._engine.lease
        return 0.0 if lease is None else max(0, lease.left_ms()) / 1000


def build_info() -> Figures:
    return {"build_info": [({"version": find_version(), "python": platform.python_version()}, 1)]}


def render(figures: Figures) -> str:
    """Prometheus' text form, in the order of METRICS."""
    lines: list[str] = []
    for name, (kind, text) in METRICS.items():
        if name not in figures:
            continue
        lines += [f"# HELP {PREFIX}{name} {text}", f"# TYPE {PREFIX}{name} {kind}"]
        lines += [f"{PREFIX}{name}{_labels(labels)} {value:.15g}" for labels, value in figures[name]]
    return "\n".join(lines) + "\n"


def _labels(labels: dict[str, str]) -> str:
    if not labels:
        return ""
    escaped = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
    inner = ",".join(f'{name}="{value.translate(escaped)}"' for name, value in labels.items())
    return f"{{{inner}}}"
