"""One mutant in a forked process: its module is put in place, the tests are run, the end is told.

The parent has loaded the tools (pytest, Hypothesis, the packages we build on) and nothing that is
mutated or depends on it; so a fork costs milliseconds and sees the mutant alone.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.abc
import importlib.util
import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Literal

Ending = Literal["survived", "killed", "timed out"]
EXIT_SURVIVED, EXIT_KILLED, EXIT_TROUBLE = 0, 1, 2
_PYTEST_OK, _PYTEST_USAGE, _PYTEST_EMPTY = 0, 4, 5
POLL_S = 0.01


class Trouble(Exception):
    """The tests could not be run at all; that says nothing about the mutant."""


def load_tools() -> None:
    """Import what every child needs; nothing of ours."""
    for name in (
        "apsw",
        "asyncio",
        "cryptography.hazmat.primitives.ciphers.aead",
        "h11",
        "hypothesis",
        "hypothesis.strategies",
        "msgspec",
        "pytest",
        "pytest_asyncio",
        "rfc8785",
        "cryptography.hazmat.primitives.kdf.hkdf",
    ):
        importlib.import_module(name)


class Child:
    """A forked process that runs tests against one tree."""

    def __init__(
        self,
        tree: ast.Module | None,
        *,
        module: str,
        path: Path,
        tests: Sequence[str],
        seeds: int,
        seconds_max: float,
        show: bool = False,
    ) -> None:
        self._ends = time.monotonic() + seconds_max
        self._pid = os.fork()
        if self._pid == 0:
            code = EXIT_TROUBLE
            try:
                os.setpgid(0, 0)
                if not show:
                    _be_silent()
                if tree is not None:
                    _put_in_place(compile(tree, str(path), "exec"), module, path)
                code = _run(tests, seeds)
            except BaseException:  # noqa: BLE001 - a mutant may end in any way
                traceback.print_exc()
                code = EXIT_KILLED
            finally:
                os._exit(code)

    def poll(self) -> Ending | None:
        """How it ended, or None while it runs."""
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        if pid == 0:
            if time.monotonic() < self._ends:
                return None
            self._kill()
            os.waitpid(self._pid, 0)
            return "timed out"
        self._kill()  # what it may have started
        code = os.waitstatus_to_exitcode(status)
        if code == EXIT_TROUBLE:
            raise Trouble("the tests could not be run")
        return "survived" if code == EXIT_SURVIVED else "killed"

    def wait(self) -> Ending:
        while (ending := self.poll()) is None:
            time.sleep(POLL_S)
        return ending

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._pid, signal.SIGKILL)


def _run(tests: Sequence[str], seeds: int) -> int:
    import pytest

    # Plain assertions: the tools are loaded already, and nobody reads what a mutant's tests say.
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--assert=plain"]
    if tests:
        code = int(pytest.main([*options, *tests], plugins=[_Quick()]))
        if code in (_PYTEST_USAGE, _PYTEST_EMPTY):
            return EXIT_TROUBLE
        if code != _PYTEST_OK:
            return EXIT_KILLED
    return _simulated(seeds) if seeds else EXIT_SURVIVED


def _simulated(seeds: int) -> int:
    from holdfast_proofs.simulate.campaign import run_seeds

    return EXIT_KILLED if run_seeds(range(seeds)).bad else EXIT_SURVIVED


class _Quick:
    """Hypothesis for mutants: the same examples each time, and no search for the smallest one."""

    def pytest_configure(self) -> None:
        from hypothesis import Phase, settings

        settings.register_profile(
            "mutants",
            settings.get_profile("project"),
            derandomize=True,
            database=None,
            max_examples=50,
            phases=(Phase.explicit, Phase.generate),
        )
        settings.load_profile("mutants")


def _be_silent() -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)


def _put_in_place(code: CodeType, module: str, path: Path) -> None:
    for name in [name for name in sys.modules if name.startswith("holdfast")]:
        del sys.modules[name]
    sys.meta_path.insert(0, _Finder(code, module, path))


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, code: CodeType, module: str, path: Path) -> None:
        self._code = code
        self._module = module
        self._path = path

    # Any: the import system's own types
    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname != self._module:
            return None
        return importlib.util.spec_from_loader(fullname, self, origin=str(self._path.resolve()))

    def exec_module(self, module: ModuleType) -> None:
        module.__file__ = str(self._path.resolve())
        exec(self._code, vars(module))  # noqa: S102 - the mutant is our own code
