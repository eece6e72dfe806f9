"""Real commands and workers in real processes, for tests."""

from __future__ import annotations

import contextlib
import io
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from holdfast_proofs.support.warm_start import WAIT_S, run_command


class Done(NamedTuple):
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:  # Any: the test says what it expects
        return json.loads(self.out)

    @property
    def error(self) -> Any:  # Any: the error object of --json
        return json.loads(self.err)["error"]


def command_line(*words: str) -> list[str]:
    return [sys.executable, "-m", "holdfast", *words]


def environment(journal: Path) -> dict[str, str]:
    """This process's environment, with this journal and no other setting of Holdfast's."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_") and name != "NO_COLOR"
    }
    return {**kept, "HOLDFAST_JOURNAL": str(journal), "COLUMNS": "200"}


class Commands:
    """Runs commands in one folder, over the journal in it.

    `main` is the command line's own entry; it is given because rooms on one line do not import
    each other.
    """

    def __init__(self, folder: Path, main: Callable[[Sequence[str]], int]) -> None:
        self.folder = folder
        self._main = main

    def __call__(self, *words: str | bytes, stdin: str | bytes = "", code: int = 0) -> Done:
        """Run a command in a process of its own; its exit code must be the expected one."""
        raw = run_command(words, cwd=self.folder, env=environment(self.folder), input=stdin)
        return self._checked(words, Done(raw.returncode, raw.stdout, raw.stderr), code)

    def look(self, *words: str, code: int = 0) -> Done:
        """Run a command that loads no app inside this process: the same answer, sooner."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            found = self._main([*words, "--journal", str(self.folder)])
        return self._checked(words, Done(found, out.getvalue(), err.getvalue()), code)

    @staticmethod
    def _checked(words: tuple[str | bytes, ...], done: Done, code: int) -> Done:
        if done.code != code:
            raise AssertionError(f"{words} exited with {done.code}\n{done.out}\n{done.err}")
        return done

    def worker(self, *words: str, app: str = "app.py:tasks") -> Worker:
        return Worker(self.folder, ("worker", app, *words))


class Worker:
    """A `holdfast worker`, with what it says on standard error. Close it."""

    def __init__(self, folder: Path, words: tuple[str, ...], given: dict[str, str] | None = None) -> None:
        """`given`: its environment, where it is not that of the journal in the folder."""
        self.process = subprocess.Popen(
            command_line(*words),
            cwd=folder,
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env=environment(folder) if given is None else given,
            text=True,
        )
        self.said: list[str] = []
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        if self.process.stderr is not None:
            for line in self.process.stderr:
                self._lines.put(line)
        self._lines.put(None)

    def wait_line(self, matches: Callable[[str], bool], wait_s: float = WAIT_S) -> str:
        """The next line that matches; it and the lines before it are kept in `said`."""
        end = time.monotonic() + wait_s
        while True:
            try:
                line = self._lines.get(timeout=max(end - time.monotonic(), 0.01))
            except queue.Empty:
                raise AssertionError(f"not said in time; said: {self.said}") from None
            if line is None:
                self._lines.put(None)
                raise AssertionError(f"the worker has ended; said: {self.said}")
            self.said.append(line)
            if matches(line):
                return line

    def wait_event(self, event: str, wait_s: float = WAIT_S) -> Any:  # Any: the fields of that event
        return json.loads(self.wait_line(lambda line: f'"event": "{event}"' in line, wait_s))

    def wait_said(self, text: str) -> None:
        self.wait_line(lambda line: text in line)

    def wait_end(self) -> int:
        """The exit code, once everything it said is in `said`."""
        code = self.process.wait(WAIT_S)
        self._reader.join(WAIT_S)
        while (line := self._lines.get()) is not None:
            self.said.append(line)
        return code

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.wait_end()

    def close(self) -> None:
        """Kill it if it still lives; its worker process dies with it."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(WAIT_S)
        self._reader.join(WAIT_S)
        if self.process.stderr is not None:
            self.process.stderr.close()


class Page(NamedTuple):
    status: int
    text: str


def ask(port: int, path: str, *, host: str = "", method: str = "GET") -> Page:
    """One request to a worker's local port."""
    headers = {"Host": host} if host else {}
    address = f"http://127.0.0.1:{port}{path}"
    request = urllib.request.Request(address, headers=headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            return Page(answer.status, answer.read().decode())
    except urllib.error.HTTPError as error:
        with error:
            return Page(error.code, error.read().decode())
