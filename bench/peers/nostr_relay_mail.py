"""nostr-relay under the load of bench/relay.py: signed events of 1 KiB to one recipient; then it is killed under load.

Runs with the Python of build/peers-relay: `python nostr_relay_mail.py FOLDER MAILS BATCH LANES`; prints JSON. Settings
are those that nostr-relay comes with (SQLite, WAL, synchronous = normal: a commit is not synced). An event counts as
stored when the relay has said OK. After the kill each of those is asked for by its id.

AgentMesh's relay is in the PyPI package agentmesh-platform 3.7.0 (`agentmesh/relay`, by Microsoft): a WebSocket server
whose only store is in memory, so a kill loses all that it has accepted. The package agentmesh 0.1.1 is a placeholder.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import websockets
import yaml
from aionostr.event import Event
from aionostr.key import PrivateKey

KILLED_AFTER = 0.4  # of the events
WAIT_S = 120.0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


class Server:
    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        shipped = Path(sys.prefix).glob("lib/python*/site-packages/nostr_relay/config.yaml")
        config = yaml.safe_load(next(shipped).read_text())
        config["storage"]["sqlalchemy.url"] = f"sqlite+aiosqlite:///{folder}/nostr.sqlite3"
        config["gunicorn"] |= {"bind": f"127.0.0.1:{self.port}", "loglevel": "error"}
        self.config = folder / "nostr.yaml"
        self.config.write_text(yaml.safe_dump(config))

    def start(self) -> None:
        words = [str(Path(sys.executable).parent / "nostr-relay"), "-c", str(self.config), "serve"]
        with (self.config.parent / "nostr.log").open("ab") as log:  # it writes a line for each event
            self.process = subprocess.Popen(words, stdout=log, stderr=log, cwd=self.config.parent, process_group=0)
        until = time.monotonic() + WAIT_S
        while time.monotonic() < until:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                time.sleep(0.1)
        raise SystemExit("nostr-relay does not listen")

    def kill(self) -> None:
        """All of its processes."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def open(self):
        return websockets.connect(f"ws://127.0.0.1:{self.port}", max_size=1 << 24, compression=None)


def events(to: str, count: int) -> list[tuple[str, str]]:
    """Ids and messages, signed beforehand."""
    key = PrivateKey()
    found = []
    for n in range(count):
        event = Event(pubkey=key.public_key.hex(), content=f"{n:08}" + "x" * 1_016, kind=4, tags=[["p", to]])
        event.sign(key.hex())
        found.append((event.id, json.dumps(["EVENT", event.to_json_object()])))
    return found


async def publish(server: Server, mails: list[tuple[str, str]], batch: int, lanes: int, ok: set[str]) -> None:
    waiting = [mails[n : n + batch] for n in range(0, len(mails), batch)]

    async def lane() -> None:
        async with server.open() as link:
            while waiting:
                part = waiting.pop()
                for _, text in part:
                    await link.send(text)
                for _ in part:
                    kind, *said = json.loads(await link.recv())
                    assert kind == "OK", (kind, said)
                    if said[1]:
                        ok.add(said[0])

    await asyncio.gather(*(lane() for _ in range(lanes)))


async def take(server: Server, to: str, count: int, ready: asyncio.Event) -> None:
    got: set[str] = set()
    async with server.open() as link:
        await link.send(json.dumps(["REQ", "s", {"#p": [to], "kinds": [4], "since": int(time.time()) - 60}]))
        while len(got) < count:
            kind, *said = json.loads(await link.recv())
            if kind == "EOSE":
                ready.set()
            elif kind == "EVENT":
                got.add(said[1]["id"])


async def find_lost(server: Server, ids: list[str]) -> int:
    found: set[str] = set()
    async with server.open() as link:
        for n in range(0, len(ids), 100):
            await link.send(json.dumps(["REQ", f"q{n}", {"ids": ids[n : n + 100]}]))
            while True:
                kind, *said = json.loads(await link.recv())
                if kind == "EOSE":
                    break
                if kind == "EVENT":
                    found.add(said[1]["id"])
            await link.send(json.dumps(["CLOSE", f"q{n}"]))
    return len(set(ids) - found)


async def measure(server: Server, mails: int, batch: int, lanes: int) -> dict[str, float]:
    recipients = [PrivateKey().public_key.hex() for _ in range(4)]
    await publish(server, events(recipients[0], 64), batch, 1, set())

    ok: set[str] = set()
    signed = events(recipients[1], mails)
    began = time.perf_counter()
    await publish(server, signed, batch, lanes, ok)
    submit_s = time.perf_counter() - began
    assert len(ok) == mails, f"only {len(ok)} of {mails} were stored"

    signed = events(recipients[2], mails)
    ready = asyncio.Event()
    reader = asyncio.create_task(take(server, recipients[2], mails, ready))
    await ready.wait()
    began = time.perf_counter()
    await publish(server, signed, batch, lanes, set())
    await asyncio.wait_for(reader, WAIT_S)
    whole_s = time.perf_counter() - began

    stored: set[str] = set()
    load = asyncio.create_task(publish(server, events(recipients[3], mails), batch, lanes, stored))
    while len(stored) < KILLED_AFTER * mails and not load.done():  # noqa: ASYNC110 - another task fills it
        await asyncio.sleep(0.001)
    server.kill()
    await asyncio.gather(load, return_exceptions=True)
    server.start()
    lost = await find_lost(server, sorted(stored))
    return {
        "submits_per_s": mails / submit_s,
        "whole_path_per_s": mails / whole_s,
        "confirmed_before_kill": len(stored),
        "lost_by_kill": lost,
    }


def main() -> None:
    folder, mails, batch, lanes = Path(sys.argv[1]), *map(int, sys.argv[2:5])
    server = Server(folder)
    server.start()
    try:
        print(json.dumps(asyncio.run(measure(server, mails, batch, lanes))))
    finally:
        server.kill()


if __name__ == "__main__":
    main()
