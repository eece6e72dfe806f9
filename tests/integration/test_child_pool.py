"""Blocking tools in killable children: whatever happens, the attempt has ended when `run` ends."""

from __future__ import annotations

import asyncio
import importlib
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.clock import SystemClock
from holdfast.errors import (
    AttemptTimedOut,
    Busy,
    ChildDied,
    KeyReused,
    NotSent,
    Refused,
    TooLarge,
    ToolNotImportable,
    ToolRaised,
)
from holdfast.journal.sqlite.host.page import SessionPage
from holdfast.journal.sqlite.host.page_reader import DeadPage, is_alive, read_dead_page
from holdfast.runtime.tool.blocking import ChildPool
from holdfast.runtime.tool.child import Target, Unkept, locate

CALL: dict[str, object] = {
    "task_id": "01J9ZK3V5T8Q2M4N6P7R8S9T0V",
    "ordinal": "4",
    "effect_key": "6f1c2a9e-0000-8000-8000-000000000000",
    "fence": (3 << 40) | 17,
    "attempt": 2,
}

TOOLS = """
import os, signal, subprocess, sys, threading, time
import holdfast.errors as hf

imports = 0
imports += 1

class Tool:
    def __init__(self, function):
        self.function = function

def pid():  # as the worker sees it: a tool may have a namespace of its own
    return int(os.readlink("/proc/self")) if sys.platform == "linux" else os.getpid()
def add(a, b=1): return a + b
def told(call, word):
    call.sending()
    return [call.task_id, call.ordinal, call.effect_key, call.fence, call.attempt, word]
def wrapped(x): return x * 2
inner = wrapped
wrapped = Tool(wrapped)
def echo(value): return value
def big(count): return "x" * count
def asks_http(call): return call.http
def refuse(): raise hf.Refused({"status": 402})
def not_sent(): raise hf.NotSent("no route")
def busy(): raise hf.Busy(2.5)
def reused(): raise hf.KeyReused({"seen": True})
def boom(): raise ValueError("bad \\udcff thing")
def leave(): sys.exit(3)
def odd(): return {1: object()}
def deep():
    value = []
    for _ in range(100_000): value = [value]
    return value
def chat(): print("to stdout", sys.stdin.read()); return "quiet"
def path(): return [sys.path, os.environ.get("PYTHONPATH"), os.getcwd(), sys.argv]
def die(): os.kill(os.getpid(), signal.SIGKILL)
def quit(): os._exit(7)
def garble():
    for fd in range(3, 64):
        try: os.write(fd, b"\\xff" * 100)
        except OSError: pass
    time.sleep(600)
def started(file):
    with open(file, "a") as out: out.write(f"{pid()}\\n")
def hang(file):
    started(file); time.sleep(600)
def hang_deaf(file):
    for number in (signal.SIGTERM, signal.SIGINT): signal.signal(number, signal.SIG_IGN)
    started(file); time.sleep(600)
def stopped(file):
    started(file); os.kill(os.getpid(), signal.SIGSTOP)
def with_helper(file, detached):
    code = f"import hf_tools; hf_tools.helper({file!r}, {detached})"
    subprocess.run([sys.executable, "-c", code], cwd=os.path.dirname(__file__))
    time.sleep(600)
def helper(file, detached):
    if detached and os.fork(): return
    if detached:
        os.setsid()
        if os.fork(): return
    started(file)
    time.sleep(600)
def forked(file):
    if os.fork() == 0:
        started(file); time.sleep(600)
    while not os.path.exists(file): time.sleep(0.01)
    os._exit(9)
def thread_left(file):
    threading.Thread(target=hang, args=(file,), daemon=True).start()
    raise ValueError("left a thread behind")
def umask():
    old = os.umask(0); os.umask(old); return old
def polite():
    os.kill(os.getpid(), signal.SIGTERM); os.kill(os.getpid(), signal.SIGINT); return "still here"
"""


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:  # Any: made here
    (tmp_path / "hf_tools.py").write_text(TOOLS)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    importlib.invalidate_caches()
    yield importlib.import_module("hf_tools")
    del sys.modules["hf_tools"]


@pytest.fixture
async def pool() -> AsyncIterator[ChildPool]:
    made = ChildPool()
    yield made
    await made.close()


async def _run(pool: ChildPool, tool: Callable[..., object], **args: object) -> object:
    return await pool.run(locate(tool), CALL, args, 30)


async def test_a_tool_runs_in_another_process_and_returns_its_value(pool: ChildPool, tools: Any) -> None:
    assert await _run(pool, tools.add, a=1, b=2) == 3
    assert await _run(pool, tools.add, a=1) == 2
    assert await _run(pool, tools.pid) != os.getpid()
    assert await _run(pool, tools.inner, x=4) == 8


async def test_a_tool_that_asks_for_the_call_is_told(pool: ChildPool, tools: Any) -> None:
    assert await _run(pool, tools.told, word="hi") == [*CALL.values(), "hi"]
    with pytest.raises(ToolRaised, match="only `async def` tools have"):
        await _run(pool, tools.asks_http)


async def test_values_come_back_exactly(pool: ChildPool, tools: Any) -> None:
    value = {"a": [1, 2.5, None, True, "ü\0", 2**63], "b": {"c": ""}}
    assert await _run(pool, tools.echo, value=value) == value


async def test_idle_children_are_used_again(pool: ChildPool, tools: Any) -> None:
    pids = {await _run(pool, tools.pid) for _ in range(5)}
    assert len(pids) == 1


async def test_what_the_tool_says_about_its_outcome_arrives(pool: ChildPool, tools: Any) -> None:
    pid = await _run(pool, tools.pid)
    with pytest.raises(Refused) as refused:
        await _run(pool, tools.refuse)
    assert refused.value.proof == {"status": 402}
    with pytest.raises(NotSent, match="no route"):
        await _run(pool, tools.not_sent)
    with pytest.raises(Busy) as busy:
        await _run(pool, tools.busy)
    assert busy.value.retry_after_s == 2.5
    with pytest.raises(KeyReused) as reused:
        await _run(pool, tools.reused)
    assert reused.value.proof == {"seen": True}
    assert await _run(pool, tools.pid) == pid  # the child gave its word and is kept


async def test_any_other_exception_is_named_and_its_child_is_not_kept(pool: ChildPool, tools: Any) -> None:
    pid = await _run(pool, tools.pid)
    with pytest.raises(ToolRaised) as raised:
        await _run(pool, tools.boom)
    assert (raised.value.kind, raised.value.text) == ("ValueError", "bad ? thing")
    assert await _run(pool, tools.pid) != pid
    with pytest.raises(ToolRaised) as left:
        await _run(pool, tools.leave)
    assert left.value.kind == "SystemExit"


@pytest.mark.parametrize("name", ["odd", "deep"])
async def test_a_result_that_is_not_json_is_an_error_of_its_own(pool: ChildPool, tools: Any, name: str) -> None:
    with pytest.raises(Unkept):
        await _run(pool, getattr(tools, name))


async def test_large_values_pass_and_larger_ones_are_refused(pool: ChildPool, tools: Any) -> None:
    large = "y" * (15 * 1024 * 1024)
    assert await _run(pool, tools.echo, value=large) == large
    with pytest.raises(Unkept, match="bytes of JSON"):
        await _run(pool, tools.big, count=40 * 1024 * 1024)
    with pytest.raises(TooLarge):
        await _run(pool, tools.echo, value="y" * (33 * 1024 * 1024))


async def test_what_a_tool_prints_goes_to_standard_error(
    pool: ChildPool, tools: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    assert await _run(pool, tools.chat) == "quiet"
    await pool.close()
    out, err = capfd.readouterr()
    assert out == ""
    assert "to stdout" in err


async def test_the_child_has_our_path_and_environment_and_nothing_in_its_arguments(pool: ChildPool, tools: Any) -> None:
    found: Any = await _run(pool, tools.path)
    ours = [entry or os.getcwd() for entry in sys.path]
    assert found[:3] == [ours, os.environ.get("PYTHONPATH"), os.getcwd()]
    assert len(found[3]) == 1
    assert await _run(pool, tools.umask) == 0o077


async def test_polite_signals_are_left_to_the_worker(pool: ChildPool, tools: Any) -> None:
    assert await _run(pool, tools.polite) == "still here"


@pytest.mark.parametrize("name", ["hang", "hang_deaf", "stopped"])
async def test_a_call_that_times_out_has_ended(pool: ChildPool, tools: Any, tmp_path: Path, name: str) -> None:
    file = tmp_path / "pids"
    await _run(pool, tools.pid)  # a warm child: the time is the tool's
    with pytest.raises(AttemptTimedOut) as late:
        await pool.run(locate(getattr(tools, name)), CALL, {"file": str(file)}, 1.0)
    assert (late.value.tool, late.value.timeout_s) == (name, 1.0)
    assert not _exists(_pids(file)[0])
    assert await _run(pool, tools.add, a=1) == 2


async def test_a_cancelled_call_has_ended_before_the_cancel_returns(
    pool: ChildPool, tools: Any, tmp_path: Path
) -> None:
    file = tmp_path / "pids"
    call = asyncio.create_task(_run(pool, tools.hang, file=str(file)))
    pid = await _wait_pid(file)
    call.cancel()
    await asyncio.sleep(0)
    call.cancel()  # an impatient second one changes nothing
    with pytest.raises(asyncio.CancelledError):
        await call
    assert not _exists(pid)


@pytest.mark.parametrize("detached", [False, True], ids=["in its group", "with a session of its own"])
async def test_processes_of_a_killed_tool_are_killed_too(
    pool: ChildPool, tools: Any, tmp_path: Path, detached: bool
) -> None:
    file = tmp_path / "pids"
    call = asyncio.create_task(_run(pool, tools.with_helper, file=str(file), detached=detached))
    watch = os.pidfd_open(await _wait_pid(file))
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert _ended(watch)


@pytest.mark.parametrize(("name", "how"), [("die", "signal 9"), ("quit", "exit code 7"), ("garble", "signal 9")])
async def test_a_child_that_dies_in_the_call_leaves_an_unknown_outcome(
    pool: ChildPool, tools: Any, name: str, how: str
) -> None:
    with pytest.raises(ChildDied, match=how):
        await _run(pool, getattr(tools, name))
    assert await _run(pool, tools.add, a=1) == 2


async def test_a_dead_child_is_noticed_though_its_fork_keeps_the_socket(
    pool: ChildPool, tools: Any, tmp_path: Path
) -> None:
    file = tmp_path / "pids"
    with pytest.raises(ChildDied, match="exit code 9"):
        await _run(pool, tools.forked, file=str(file))
    assert _ended(_pidfd(_pids(file)[0]))


async def test_a_thread_left_behind_by_a_failed_tool_ends_with_it(pool: ChildPool, tools: Any, tmp_path: Path) -> None:
    file = tmp_path / "pids"
    with pytest.raises(ToolRaised, match="left a thread"):
        await _run(pool, tools.thread_left, file=str(file))
    for pid in _pids(file) if file.exists() else []:
        assert not _exists(pid)


async def test_nothing_is_marked_as_sent_before_the_function_is_found(
    pool: ChildPool, tools: Any, tmp_path: Path
) -> None:
    marks: list[str] = []

    async def marked(target: Target, **args: object) -> object:
        return await pool.run(target, CALL, args, 30, before_send=lambda: marks.append("begun"))

    (tmp_path / "hf_broken.py").write_text("raise RuntimeError('no config')")
    with pytest.raises(ToolNotImportable, match="no config"):
        await marked(Target(module="hf_broken", name="go"))
    with pytest.raises(ToolNotImportable, match="has no function"):
        await marked(Target(module="hf_tools", name="nothing"))
    (tmp_path / "hf_exits.py").write_text("import os; os._exit(4)")
    with pytest.raises(NotSent, match="exit code 4 before the call"):
        await marked(Target(module="hf_exits", name="go"))
    assert marks == []
    assert await marked(locate(tools.add), a=1) == 2
    assert marks == ["begun"]


async def test_an_import_that_hangs_is_not_sent(tools: Any, tmp_path: Path) -> None:
    pool = ChildPool(ready_s=0.5)
    (tmp_path / "hf_slow.py").write_text("import time; time.sleep(600)")
    with pytest.raises(NotSent, match=r"within 0\.5 s"):
        await pool.run(Target(module="hf_slow", name="go"), CALL, {}, 60)
    await pool.close()


async def test_the_time_of_a_call_counts_from_its_entry(pool: ChildPool, tools: Any, tmp_path: Path) -> None:
    """A module that is slow to import is not the tool's fault, and killing it would not help."""
    (tmp_path / "hf_heavy.py").write_text("import time; time.sleep(0.5)\ndef go(): return 1")
    assert await pool.run(Target(module="hf_heavy", name="go"), CALL, {}, 0.3) == 1


async def test_a_mark_that_cannot_be_made_stops_the_send(pool: ChildPool, tools: Any, tmp_path: Path) -> None:
    def fails() -> None:
        raise OSError(28, "No space left on device")

    file = tmp_path / "pids"
    with pytest.raises(OSError, match="No space"):
        await pool.run(locate(tools.started), CALL, {"file": str(file)}, 30, before_send=fails)
    await pool.close()
    assert not file.exists()


async def test_calls_beyond_the_limit_wait_for_their_turn(tools: Any, tmp_path: Path) -> None:
    pool = ChildPool(children_max=2)
    files = [tmp_path / f"pids{number}" for number in range(2)]
    calls = [asyncio.create_task(_run(pool, tools.hang, file=str(file))) for file in files]
    for file in files:
        await _wait_pid(file)
    waiting = asyncio.create_task(pool.run(locate(tools.add), CALL, {"a": 1}, 0.3))
    await asyncio.sleep(0.4)
    assert not waiting.done()
    calls[0].cancel()
    assert await waiting == 2
    await pool.close()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(result) for result in results] == [asyncio.CancelledError, ChildDied]
    with pytest.raises(NotSent):
        await _run(pool, tools.add, a=1)


async def test_idle_children_leave_after_a_while(tools: Any) -> None:
    pool = ChildPool(idle_s=0.05)
    watch = _pidfd(await _run(pool, tools.pid))
    await asyncio.to_thread(_ended, watch, close=False)
    await asyncio.sleep(0)
    assert _ended(watch)
    assert await _run(pool, tools.add, a=1) == 2
    await pool.close()


async def test_an_idle_child_that_was_killed_is_replaced(pool: ChildPool, tools: Any) -> None:
    pid = await _run(pool, tools.pid)
    assert isinstance(pid, int)
    watch = _pidfd(pid)
    os.kill(pid, signal.SIGKILL)
    await asyncio.to_thread(_ended, watch)
    assert await _run(pool, tools.pid) != pid


async def test_a_running_tool_holds_the_sessions_lock(tools: Any, tmp_path: Path) -> None:
    folder = tmp_path / "instance" / "journal"
    page = SessionPage.create(folder, "s", boot_id=SystemClock().boot_id, incarnation=1)
    pool = ChildPool(page.lock_fd)
    file = tmp_path / "pids"
    call = asyncio.create_task(_run(pool, tools.hang, file=str(file)))
    await _wait_pid(file)
    page.close(delete=False)
    assert is_alive(folder, "s")
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert not is_alive(folder, "s")
    await pool.close()


SCRIPT = """
import asyncio, os, sys, time
from holdfast.runtime.tool.blocking import ChildPool
from holdfast.runtime.tool.child import locate
print("body of", __name__, flush=True)
def here(x):
    return [x, os.getpid()]
def hang(file):
    with open(file, "w") as out: out.write(os.readlink("/proc/self") + "\\n")
    time.sleep(600)
CALL = {"task_id": "t", "ordinal": "1", "effect_key": "k", "fence": 1, "attempt": 1}
async def main():
    pool = ChildPool()
    if len(sys.argv) > 1:
        await pool.run(locate(hang), CALL, {"file": sys.argv[1]}, None)
    value, pid = await pool.run(locate(here), CALL, {"x": 5}, 30)
    print("value", value, pid != os.getpid(), flush=True)
    await pool.close()
"""
GUARDED = SCRIPT + 'if __name__ == "__main__":\n    asyncio.run(main())\n'


def test_a_tool_of_the_script_itself_is_found_and_the_script_not_started_again(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(GUARDED)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert done.stdout == "body of __main__\nvalue 5 True\n", done.stderr
    assert "body of __holdfast_script__" in done.stderr
    as_module = subprocess.run([sys.executable, "-m", "script"], capture_output=True, text=True, cwd=tmp_path)
    assert as_module.stdout == "body of __main__\nvalue 5 True\n", as_module.stderr


def test_a_script_without_the_usual_guard_is_told_instead_of_multiplied(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT + "asyncio.run(main())\n")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert done.returncode != 0
    assert "ToolNotImportable" in done.stderr
    assert "it may not open a journal" in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills children with their parent")
def test_a_killed_worker_takes_its_children_with_it(tmp_path: Path) -> None:
    script, file = tmp_path / "script.py", tmp_path / "pid"
    script.write_text(GUARDED)
    with subprocess.Popen([sys.executable, str(script), str(file)], stdout=subprocess.DEVNULL) as worker:
        pid = asyncio.run(_wait_pid(file))
        watch = os.pidfd_open(pid)
        worker.kill()
    assert _ended(watch)


OUTLIVED = """
import asyncio, os, subprocess, sys, time
from holdfast.host.hardening import prctl
from holdfast.journal.sqlite.host.page import SessionPage
from holdfast.runtime.tool.blocking import ChildPool
from holdfast.runtime.tool.child import locate
FOLDER = os.path.dirname(os.path.abspath(__file__))
CALL = {"task_id": "t", "ordinal": "1", "effect_key": "k", "fence": 1, "attempt": 1}
def detach():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.closerange(3, 100)  # as subprocess does: also the session's lock
            with open(f"{FOLDER}/pid", "w") as out: out.write(os.readlink("/proc/self") + "\\n")
            time.sleep(600)
        os._exit(0)
    time.sleep(600)
async def main():
    from pathlib import Path
    if sys.argv[1] == "bare" and os.geteuid() == 0:
        prctl(24, 21)  # PR_CAPBSET_DROP, CAP_SYS_ADMIN: from the next exec on
    page = SessionPage.create(Path(FOLDER, "instance"), "s", boot_id="boot", incarnation=1)
    slot = page.take_slot(b"attempt1")
    await ChildPool(page.lock_fd).run(locate(detach), CALL, {}, None, left_at=page.left_at(slot))
if __name__ == "__main__":
    asyncio.run(main())
"""


def _may_unshare() -> bool:
    """By a program of the system's, not by ours."""
    unshare = shutil.which("unshare")
    return bool(unshare) and subprocess.run([unshare, "--pid", "--fork", "true"], capture_output=True).returncode == 0


@pytest.mark.skipif(sys.platform != "linux", reason="a keeper needs Linux")
@pytest.mark.parametrize("how", ["as it is", "bare"])
@pytest.mark.parametrize("both", [False, True], ids=["worker", "worker and keeper"])
def test_what_a_tool_started_ends_with_the_worker_or_is_known_to_be_left(tmp_path: Path, how: str, both: bool) -> None:
    """In a namespace, or by a keeper; where there is no namespace and the keeper is killed too, the page says so."""
    script, folder = tmp_path / "script.py", tmp_path / "instance"
    script.write_text(OUTLIVED)
    with subprocess.Popen([sys.executable, str(script), how], stdout=subprocess.DEVNULL) as worker:
        watch = os.pidfd_open(pid := asyncio.run(_wait_pid(tmp_path / "pid")))
        keepers = Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text().split()
        enclosed = os.readlink(f"/proc/{pid}/ns/pid") != os.readlink("/proc/self/ns/pid")
        assert len(keepers) == 1
        if both:
            os.kill(int(keepers[0]), signal.SIGKILL)
        worker.kill()
    assert enclosed == (how == "as it is" and _may_unshare()), "where the kernel allows it, it is in a namespace"
    while is_alive(folder, "s"):
        time.sleep(0.005)
    dead = read_dead_page(folder, "s", boot_id="boot")
    assert isinstance(dead, DeadPage)
    if both and not enclosed:
        assert dead.is_left(0, b"attempt1")
        os.kill(pid, signal.SIGKILL)
    else:
        assert not dead.is_left(0, b"attempt1")
        if not both:
            assert not _exists(pid)  # the lock is released after it
    assert _ended(watch)


async def test_a_call_costs_little_on_a_warm_child(
    pool: ChildPool, tools: Any, measured: Callable[[str], None]
) -> None:
    began = time.perf_counter()
    await _run(pool, tools.add, a=1)
    cold_s = time.perf_counter() - began
    began = time.perf_counter()
    for _ in range(100):
        await _run(pool, tools.add, a=1)
    warm_us = (time.perf_counter() - began) * 10_000
    measured(f"blocking tool in a child: {cold_s * 1000:.0f} ms cold, {warm_us:.0f} us warm")


def _pids(file: Path) -> list[int]:
    return [int(line) for line in file.read_text().split()]


async def _wait_pid(file: Path) -> int:
    """The number that a tool wrote when it began."""
    async with asyncio.timeout(30):
        while not (file.exists() and file.read_text().endswith("\n")):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    return _pids(file)[0]


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _pidfd(pid: object) -> int:
    assert isinstance(pid, int)
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return -1


def _ended(pidfd: int, *, close: bool = True) -> bool:
    if pidfd < 0:
        return True
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    try:
        return bool(poller.poll(30_000))
    finally:
        if close:
            os.close(pidfd)
