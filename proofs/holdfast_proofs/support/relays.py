"""Real relay processes in folders of their own, on free ports; and programs that answer in a relay's place."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.witness.relay_link import RelayLink, open_link
from holdfast.identity.witness.witness_relay import RelayWitness
from holdfast.layout.witness_address import WitnessRelay, parse_relay_address
from holdfast_proofs.support.tls import make_tls

START_S = 30.0
ROOM = (
    "registrations_an_hour = 1000\nmails_per_s = 10000\nmails_of_agent_per_s = 10000\nconnections_of_address = 4000\n"
)
TRUST = "SSL_CERT_FILE"


@dataclass
class RelayProcess:
    """`holdfast relay serve` of one folder; started again it has the same key and the same port."""

    folder: Path
    options: tuple[str, ...] = ("--registration", "open")
    program: tuple[str, ...] = ("-m", "holdfast", "relay", "serve")
    host: str = "127.0.0.1"
    inside: tuple[str, ...] = ()  # goes before its command: the network namespace where it runs
    address: str = ""
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> RelayProcess:
        return self.begin().ready()

    def begin(self) -> RelayProcess:
        if not self.folder.exists():
            self.folder.mkdir(mode=0o700)
            (self.folder / "relay.toml").write_text(ROOM)
        listen = f"{self.host}:{self.port if self.address else 0}"
        words = [*self.program, "--folder", str(self.folder), "--listen", listen, "--json", *self.options]
        with (self.folder.parent / f"{self.folder.name}.log").open("ab") as log:
            whole = [*self.inside, sys.executable, *words]
            self.process = subprocess.Popen(whole, stdout=subprocess.PIPE, stderr=log)
        return self

    def ready(self) -> RelayProcess:
        """When it answers."""
        assert self.process is not None
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, (self.folder.parent / f"{self.folder.name}.log").read_text()
        self.address = str(json.loads(line)["address"])
        return self

    @property
    def at(self) -> WitnessRelay:
        return parse_relay_address(self.address)

    @property
    def port(self) -> int:
        return int(self.at.url.rpartition(":")[2])

    @property
    def link(self) -> RelayLink:
        return open_link(self.at, port=Sodium())

    @property
    def witness(self) -> RelayWitness:
        return RelayWitness(self.link)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        process = self.process
        assert process is not None
        assert process.stdout is not None
        if process.poll() is None:
            process.send_signal(number)
        code = process.wait(START_S)
        process.stdout.close()
        self.process = None
        return code

    def kill(self) -> None:
        self.stop(signal.SIGKILL)


def relay_with_tls(folder: Path, host: str, *, inside: tuple[str, ...] = ()) -> RelayProcess:
    """A relay on another address than loopback, not started: agents use it only over TLS. Its certificate is in
    `server.pem` beside its folder, or where another relay on this address has left one."""
    pem = folder.parent / "server.pem"
    if not pem.exists():
        make_tls(folder.parent, host)
    folder.mkdir(mode=0o700)
    # The port is chosen by the system; `url` says only that there is TLS.
    text = f'tls_cert = "{pem}"\ntls_key = "{pem}"\nurl = "https://{host}:1"\n{ROOM}'
    (folder / "relay.toml").write_text(text)
    return RelayProcess(folder, host=host, inside=inside)


@contextmanager
def trusting(*pems: Path) -> Generator[None]:
    """This process, and what it starts in the block, trusts these certificates, and no others."""
    before = os.environ.get(TRUST)
    with tempfile.NamedTemporaryFile(suffix=".pem") as file:
        file.write(b"".join(one.read_bytes() for one in pems))
        file.flush()
        os.environ[TRUST] = file.name
        try:
            yield
        finally:
            os.environ.pop(TRUST, None)
            if before is not None:
                os.environ[TRUST] = before


@contextmanager
def relays(
    root: Path, *names: str, options: tuple[str, ...] = ("--registration", "open")
) -> Generator[list[RelayProcess]]:
    made = [RelayProcess(root / name, options) for name in names]
    try:
        for one in made:
            one.begin()
        for one in made:
            one.ready()
        yield made
    finally:
        for one in made:
            if one.process is not None:
                one.kill()


Answer = Callable[[str, str, bytes, bytes], tuple[int, bytes]]  # method, path, nonce, body: status and answer


@contextmanager
def answering(answer: Answer) -> Generator[str]:
    """A server on loopback that answers as it is told; its url."""

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            nonce = self.headers.get("holdfast-nonce", "").encode()
            status, raw = answer(self.command, self.path, nonce, body)
            self.send_response(status)
            self.send_header("content-length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        do_GET = do_PUT = do_POST = _answer  # noqa: N815 - the names that http.server looks for

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
