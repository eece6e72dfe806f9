"""provider-lost: the model endpoint that answered the last turn is gone; the next turn goes to another one."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Generator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from msgspec.structs import replace

from holdfast.drills.host_loss import describe
from holdfast.drills.probe import MODEL_URLS, TALK
from holdfast.drills.run import DrillRun
from holdfast.drills.work import no_loss, wait_until
from holdfast.surfaces import report as out

FIRST, SECOND = "drill: the first turn", "drill: the second turn"
PAUSE_S = 2.0  # between the turns; the endpoint goes away in it


@dataclass(slots=True)
class ModelEnd:
    """An endpoint that answers every chat with one word, and keeps the bytes of each request."""

    port: int
    server: ThreadingHTTPServer
    bodies: list[bytes] = field(default_factory=list[bytes])

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@contextlib.contextmanager
def model_end(word: str) -> Generator[ModelEnd]:
    bodies: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers.get("Content-Length", "0"))))
            choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": word}}
            usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
            answer = {"id": "drill", "object": "chat.completion", "created": 1, "model": "drill", "choices": [choice]}
            raw = json.dumps({**answer, "usage": usage}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, format: str, *args: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    end = ModelEnd(server.server_address[1], server, bodies)
    threading.Thread(target=server.serve_forever, name="model end", daemon=True).start()
    try:
        yield end
    finally:
        end.close()


def provider_lost(run: DrillRun) -> None:
    with contextlib.ExitStack() as stack:
        first, second = (stack.enter_context(model_end(word)) for word in ("one", "two"))
        shadow = stack.enter_context(run.running_copy())
        ports = {name: shadow.forward(one.port) for name, one in zip(MODEL_URLS, (first, second), strict=True)}
        urls = {name: f"http://127.0.0.1:{port}/v1" for name, port in ports.items()}
        run.start_worker(settings=urls).wait_serving()
        task = run.submit([], task=TALK, first=FIRST, second=SECOND, pause_s=PAUSE_S)
        wait_until(lambda: first.bodies, f"task {task} asks no model")
        run.event("baseline_taken", f"the first turn was answered by the first endpoint; {describe(run)}")
        first.close()
        run.fault("the model endpoint is gone", how="it is closed; what it held is lost", target="the first endpoint")
        run.event("recovery_started", "the next turn", actor="holdfast")
        wait_until(lambda: second.bodies, "the second turn reaches no other endpoint")
        run.event("state_restored", "the second endpoint was asked")
        run.event("journal_reconciled", "every message is in the journal")
        shown = run.wait_task(task)
        run.check("L1", shown["state"] == "succeeded", f"task {task}: {shown['state']}")
        run.event("first_verified_step", f"the second turn was answered by the second endpoint: {shown['result']}")
        _compare(run, first.bodies[0], second.bodies[-1])
        run.act("see what waits for a person", must=False)
        no_loss(run)


def _compare(run: DrillRun, before: bytes, after: bytes) -> None:
    """The messages of the first turn begin the second request, byte for byte."""
    end = before.index(FIRST.encode()) + len(FIRST)
    same = before[:end] == after[:end] and SECOND.encode() in after
    run.check("prefix", same, f"the first {end} bytes of the request are {'equal' if same else 'NOT equal'}")
    roots = {"manifest_root_before": out.sha256_of(before[:end]), "manifest_root_after": out.sha256_of(after[:end])}
    run.state = replace(out.NOT_COMPARED, **roots, prompt_prefix_equal=same)
