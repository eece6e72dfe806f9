"""Real workers of an agent in a folder, a far end that counts, and what they said."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
from quick_agent import Agent

from holdfast.app.worker import Order

APP = str(Path(__file__).parent / "programs" / "letters.py")
LEASE_S = 2.5


def settings(place: Path) -> str:
    """For holdfast.toml: an arbiter, a short lease, notices into a file beside the home."""
    return f"""arbiter = "{place / "arbiter"}"
lease_s = {LEASE_S}

[worker]
lease_ttl_s = 5.0

[notices]
command = ["/bin/sh", "-c", "cat >> $NOTICES"]
"""


@dataclass
class Worker:
    """A process and what it said."""

    process: subprocess.Popen[bytes]
    log: Path
    notices: Path

    def events(self, kind: str) -> list[dict[str, Any]]:  # Any: fields of log lines
        lines = self.log.read_text(errors="replace").splitlines()
        found = [json.loads(line) for line in lines if line.startswith("{")]
        return [one for one in found if one["event"] == kind]

    def told(self, kind: str) -> list[dict[str, Any]]:
        """Notices of that kind that reached the hook; they follow each other without a gap."""
        text = self.notices.read_text() if self.notices.exists() else ""
        decoder, at, found = json.JSONDecoder(), 0, list[dict[str, Any]]()
        while at < len(text):
            one, at = decoder.raw_decode(text, at)
            found.append(one)
            while at < len(text) and text[at].isspace():
                at += 1
        return [one for one in found if one["kind"] == kind]

    def says(self, text: str) -> bool:
        return text in self.log.read_text(errors="replace")


def worker(home: Path, *, url: str, name: str = "w") -> AbstractContextManager[Worker]:
    """`holdfast worker` of the journal in this home, with the parent that starts it again; killed
    on leaving. On a busy machine a short lease may end by itself: then it goes on anew."""
    words = ["-m", "holdfast", "worker", f"{APP}:tasks", "--journal", str(home / "journal.db")]
    return _process(home, words, url=url, name=name)


def alone(home: Path, *, url: str, name: str = "a") -> AbstractContextManager[Worker]:
    """A worker process without the parent that would start it again."""
    order = Order(app=f"{APP}:tasks", journal=str(home / "journal.db"))
    module = ["-m", "holdfast.demo.workers", str(os.getpid()), json.dumps(asdict(order))]
    return _process(home, module, url=url, name=name)


def embedded(home: Path, *, url: str, name: str = "e") -> AbstractContextManager[Worker]:
    """A program of somebody's own that opens the journal in this home."""
    return _process(home, [APP, str(home / "journal.db")], url=url, name=name)


@contextmanager
def _process(home: Path, words: list[str], *, url: str, name: str) -> Generator[Worker]:
    log, notices = home.parent / f"{name}.log", home.parent / f"{name}.notices"
    with log.open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, "-P", *words],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env={**os.environ, "LETTERS_URL": url, "NOTICES": str(notices)},
        )
    try:
        yield Worker(process, log, notices)
    finally:
        process.kill()
        process.wait()


def submit(home: Path, *, count: int, keyed: bool = False) -> None:
    import asyncio

    import holdfast

    async def go() -> None:
        async with holdfast.open(home / "journal.db", serve=False) as hf:
            await hf.submit("post_letters", count=count, keyed=keyed, request_id="letters")

    asyncio.run(go())


def copied(agent: Agent, to: Path) -> Path:
    """The folder as a person copies it, while the agent runs."""
    shutil.copytree(agent.folder, to, ignore=shutil.ignore_patterns("*-shm"))
    return to


def wait_for(what: Callable[[], object], *, timeout_s: float = 60.0) -> None:
    end = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


def lease_of(home: Path) -> dict[str, Any]:  # Any: JSON
    try:
        return msgspec.json.decode((home / "instance" / "lease.json").read_bytes())
    except FileNotFoundError:
        return {"state": "", "e": 0}
