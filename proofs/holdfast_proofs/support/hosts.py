"""Hosts of one journal on a server: folders of their own with the same keys, real commands and workers."""

from __future__ import annotations

import io
import shutil
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from holdfast.cli.main import main
from holdfast_proofs.support.command_line import Done, Worker, environment
from holdfast_proofs.support.warm_start import run_command


class Host:
    """One host: its folder has the keys, and nothing else of the journal. Close it."""

    def __init__(self, folder: Path, url: str, *, app: Path, keys_of: Host | None = None) -> None:
        """An empty url: the one in its settings counts."""
        self.folder = folder
        self.app = f"{app}:tasks"
        self.workers: list[Worker] = []
        folder.mkdir(mode=0o700)
        if keys_of is not None:
            shutil.copy(keys_of.folder / "keys.json", folder)
        given = {**environment(folder), "HOLDFAST_JOURNAL": url, "HOLDFAST_HOME": str(folder)}
        self.environment: Mapping[str, str] = {name: value for name, value in given.items() if value}

    def __call__(self, *words: str, code: int = 0) -> Done:
        raw = run_command(words, cwd=self.folder, env=dict(self.environment), input="")
        if raw.returncode != code:
            raise AssertionError(f"{words} exited with {raw.returncode}\n{raw.stdout}\n{raw.stderr}")
        return Done(raw.returncode, raw.stdout, raw.stderr)

    def look(self, *words: str, code: int = 0, at: str = "") -> Done:
        """Run a command that loads no app inside this process: the same answer, sooner. `at`: another journal."""
        out, err = io.StringIO(), io.StringIO()
        journal = at or self.environment["HOLDFAST_JOURNAL"]
        with redirect_stdout(out), redirect_stderr(err):
            found = main([*words, "--journal", journal, "--home", str(self.folder)])
        if found != code:
            raise AssertionError(f"{words} exited with {found}\n{out.getvalue()}\n{err.getvalue()}")
        return Done(found, out.getvalue(), err.getvalue())

    def submit(self, request: str, request_id: str, *more: str) -> str:
        return self("submit", self.app, request, "--task", "pay", "--request-id", request_id, *more).out.strip()

    def worker(self, *words: str) -> Worker:
        line = ("worker", self.app, "--lease-ttl", "3", *words)
        self.workers.append(Worker(self.folder, line, dict(self.environment)))
        return self.workers[-1]

    def close(self) -> None:
        for worker in self.workers:
            worker.close()
