"""Workers: killed and restarted, stopped politely, side by side, watched over a local port."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast_proofs.support.command_line import WAIT_S, Commands, Worker, ask

Start = Callable[..., Worker]


def accept(hf: Commands, task: str, request: str) -> str:
    words = ("submit", "app.py:tasks", request, "--task", task, "--no-follow")
    return hf(*words).out.strip()


def wait_ended(worker: Worker, task_id: str) -> str:
    while True:
        event = worker.wait_event("run-ended")
        if event["task_id"] == task_id:
            return str(event["state"])


def keys_sent(folder: Path) -> list[str]:
    return (folder / "charged").read_text().split()


def test_a_killed_worker_is_started_again_and_resumes(hf: Commands, start_worker: Start) -> None:
    """SIGKILL inside the payment: the next process sends again under the same key, once more."""
    task_id = accept(hf, "pay", '{"cents": 700}')
    worker = start_worker()
    pid = worker.wait_event("serving")["pid"]
    worker.wait_said("CHARGING")
    assert not any('"checked"' in line for line in worker.said), "nothing has crashed yet"
    os.kill(pid, signal.SIGKILL)
    again = worker.wait_event("serving")["pid"]
    assert again != pid
    worker.wait_said("CHARGING")
    (hf.folder / "go").touch()
    assert wait_ended(worker, task_id) == "succeeded"
    if not any('"checked"' in line for line in worker.said):
        worker.wait_event("checked")  # it is checked beside the work, and a fast disk ends that first
    assert worker.stop() == 0
    assert sum('"checked"' in line for line in worker.said) == 1, "after a crash the whole journal"
    shown = hf.look("task", "show", task_id, "--json").json
    charged = shown["steps"][1]
    assert keys_sent(hf.folder) == [charged["effect_key"]] * 2
    assert shown["result"]["key"] == charged["effect_key"]
    assert charged["attempts"] == 2
    assert len(shown["claims"]) == 2


def test_a_call_under_way_ends_before_the_worker_does(hf: Commands, start_worker: Start) -> None:
    task_id = accept(hf, "pay", '{"cents": 700}')
    worker = start_worker("--grace", "60")
    worker.wait_said("CHARGING")
    worker.process.send_signal(signal.SIGTERM)
    worker.wait_event("stopping")
    assert worker.process.poll() is None
    (hf.folder / "go").touch()
    assert worker.wait_end() == 0
    asked = [line for line in worker.said if "to finish" in line]
    assert ["calls in flight have 60 s to finish" in line for line in asked] == [True]  # the number of --grace
    shown = hf.look("task", "show", task_id, "--json").json
    assert (shown["state"], len(keys_sent(hf.folder))) == ("succeeded", 1)


def test_a_call_longer_than_the_grace_is_unknown_and_resumed(hf: Commands, start_worker: Start) -> None:
    """SIGTERM in mid-call: nothing is lost and nothing is called failed."""
    task_id = accept(hf, "pay", '{"cents": 700}')
    worker = start_worker("--grace", "0.2")
    worker.wait_said("CHARGING")
    assert worker.stop() == 0
    shown = hf.look("task", "show", task_id, "--json").json
    assert shown["state"] == "queued"
    assert shown["steps"][1]["state"] == "unknown"
    doubts = hf.look("effect", "list", "--json").json["effects"]
    assert [one["effect"] for one in doubts] == [f"{task_id}/2"]
    (hf.folder / "go").touch()
    assert wait_ended(start_worker(), task_id) == "succeeded"
    assert len(set(keys_sent(hf.folder))) == 1


def test_a_second_signal_kills_and_loses_nothing(hf: Commands, start_worker: Start) -> None:
    task_id = accept(hf, "pay", '{"cents": 700}')
    worker = start_worker("--grace", "60")
    worker.wait_said("CHARGING")
    worker.process.send_signal(signal.SIGINT)
    worker.wait_event("stopping")
    asked = time.monotonic()
    while worker.process.poll() is None and time.monotonic() < asked + WAIT_S:
        worker.process.send_signal(signal.SIGINT)  # two within a second count as one
        time.sleep(0.2)
    assert worker.wait_end() == 128 + signal.SIGKILL
    (hf.folder / "go").touch()
    assert wait_ended(start_worker(), task_id) == "succeeded"


def test_two_workers_share_a_journal(hf: Commands, start_worker: Start) -> None:
    """Each task is run by one of them; when one is gone the other serves on."""
    first, second = start_worker("--name", "first"), start_worker("--name", "second")
    first.wait_event("session-begun")
    second.wait_event("session-begun")
    ids = {accept(hf, "hello", f"guest {number}") for number in range(4)}
    found = hf.look("doctor", "--json").json["findings"]
    assert any("2 alive" in one["text"] for one in found)
    for task_id in ids:
        _wait_state(hf, task_id, "succeeded")
    assert len((hf.folder / "sent").read_text().split()) == 4
    assert first.stop() == 0
    task_id = accept(hf, "hello", "late")
    assert wait_ended(second, task_id) == "succeeded"
    shown = hf.look("task", "show", task_id, "--json").json
    assert shown["claims"][0]["worker"] == "second"
    task_id = accept(hf, "collector", "{}")
    assert wait_ended(second, task_id) == "succeeded"
    threshold, frozen = hf.look("task", "show", task_id, "--json").json["result"]
    assert (threshold, frozen > 0) == (5_000, True), "the garbage collector does not walk what is loaded at each step"


def test_a_task_that_exits_fails_alone(hf: Commands, start_worker: Start) -> None:
    worker = start_worker()
    pid = worker.wait_event("serving")["pid"]
    task_id = accept(hf, "quits", "{}")
    assert wait_ended(worker, task_id) == "failed"
    assert wait_ended(worker, accept(hf, "hello", "ada")) == "succeeded"
    os.kill(pid, 0)  # it is the same process still
    assert worker.stop() == 0


def test_an_exit_call_inside_a_tool_costs_one_task_and_not_the_service(hf: Commands, start_worker: Start) -> None:
    """Exit code 2 means a wrong setting only where the worker itself says so."""
    poison = accept(hf, "leaves", '{"code": 2}')
    worker = start_worker()
    worker.wait_said("worker ended (2: code that it ran called exit)")
    _wait_state(hf, poison, "parked")
    assert wait_ended(worker, accept(hf, "hello", "ada")) == "succeeded"
    assert worker.stop() == 0


def test_a_worker_whose_journal_is_removed_ends(hf: Commands, start_worker: Start) -> None:
    accept(hf, "hello", "ada")
    worker = start_worker()
    worker.wait_event("run-ended")
    (hf.folder / "journal.db").unlink()
    worker.wait_said("was removed or replaced while this process had it open")
    assert worker.wait_end() == 6


@pytest.mark.parametrize(
    ("app", "words", "code", "said"),
    [
        ("missing.py:tasks", (), 2, "there is no file missing.py"),
        ("app.py:nothing", (), 2, "has no attribute 'nothing'"),
        ("app.py", (), 2, "is not an app"),
        ("no.such.module:tasks", (), 2, "cannot be found"),
        ("exits.py:tasks", (), 2, "failed on import: SystemExit"),
        ("app.py:tasks", ("--lease-ttl", "0"), 2, "lease_ttl_s must be between"),
        ("app.py:tasks", ("--config", "none.toml"), 2, "there is no settings file"),
        ("app.py:tasks", ("--journal", "missing/journal.db"), 6, "does not exist"),
    ],
)
def test_what_a_restart_cannot_mend_is_said_once(
    hf: Commands, start_worker: Start, app: str, words: tuple[str, ...], code: int, said: str
) -> None:
    (hf.folder / "exits.py").write_text("import sys; sys.exit(0)\n")
    worker = start_worker(*words, app=app)
    assert worker.wait_end() == code
    errors = [line for line in worker.said if line.startswith("error:")]
    assert len(errors) == 1
    assert said in errors[0]
    assert any(line.startswith("see: holdfast explain ") for line in worker.said)
    assert not (hf.folder / "journal.db").exists()


def test_settings_beside_the_journal_are_used(hf: Commands, start_worker: Start) -> None:
    settings = hf.folder / "holdfast.toml"
    settings.write_text('[worker]\nname = "smith"\n[notices]\ncommand = ["sh", "-c", "cat >> told"]\n')
    task_id = accept(hf, "parks", "{}")
    worker = start_worker()
    assert worker.wait_event("session-begun")["worker"] == "smith"
    assert wait_ended(worker, task_id) == "parked"
    end = time.monotonic() + WAIT_S
    told = hf.folder / "told"
    told.touch()
    while not told.read_text().endswith("\n") and time.monotonic() < end:
        time.sleep(0.02)
    assert json.loads(told.read_text())["task_id"] == task_id
    assert worker.stop() == 0
    settings.write_text("[worker]\nconcurency = 3\n")
    wrong = start_worker()
    assert wrong.wait_end() == 2
    assert "did you mean concurrency?" in "".join(wrong.said)


def test_health_and_metrics_tell_the_truth(hf: Commands, start_worker: Start) -> None:
    task_id = accept(hf, "pay", '{"cents": 700}')
    worker = start_worker("--health-port", "0", "--lease-ttl", "2")
    port = worker.wait_event("health")["port"]
    worker.wait_said("CHARGING")
    health = ask(port, "/healthz")
    assert health.status == 200
    fields: dict[str, Any] = json.loads(health.text)
    assert (fields["ok"], fields["reasons"], fields["running"]) == (True, [], 1)
    assert 0 < fields["lease_left_s"] <= 2
    figures = _figures(ask(port, "/metrics").text)
    assert figures['holdfast_tasks{state="running"}'] == 1
    assert figures["holdfast_runs_total"] == figures["holdfast_claims_total"] == 1
    assert figures["holdfast_up"] == 1
    assert figures["holdfast_commits_total"] > 0
    assert any(name.startswith("holdfast_build_info{") for name in figures)
    (hf.folder / "go").touch()
    assert wait_ended(worker, task_id) == "succeeded"
    figures = _figures(ask(port, "/metrics").text)
    assert figures['holdfast_tasks{state="succeeded"}'] == 1
    assert figures["holdfast_runs_finished_total"] == 1


def test_the_local_port_answers_only_what_it_should(hf: Commands, start_worker: Start) -> None:
    worker = start_worker("--health-port", "0")
    port = worker.wait_event("health")["port"]
    worker.wait_event("session-begun")
    assert ask(port, "/healthz", host=f"localhost:{port}").status == 200
    assert ask(port, "/healthz", host="agents.example").status == 421
    assert ask(port, "/healthz", host="localhost.example:80").status == 421
    assert ask(port, "/healthz", method="POST").status == 405
    assert ask(port, "/", host="127.0.0.1").status == 404
    assert _raw(port, b"GET /healthz HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    assert _raw(port, b"nonsense\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    assert _raw(port, b"GET / HTTP/1.1\r\nX: " + b"x" * 20_000).startswith(b"HTTP/1.1 431 ")
    taken = start_worker("--health-port", str(port))
    assert taken.wait_end() == 2
    assert "cannot listen" in "".join(taken.said)


def _raw(port: int, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as sock:
        sock.sendall(request)
        found = b""
        try:
            while got := sock.recv(4_096):
                found += got
        except ConnectionResetError:
            pass  # it closed with some of a too long request unread
        return found


def _figures(text: str) -> dict[str, float]:
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def _wait_state(hf: Commands, task_id: str, state: str) -> None:
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        if hf.look("task", "show", task_id, "--json").json["state"] == state:
            return
        time.sleep(0.05)
    raise AssertionError(f"{task_id} did not become {state}")


def test_a_task_that_no_live_worker_serves_is_named(hf: Commands, start_worker: Start) -> None:
    """A worker is alive, but with another app."""
    worker = start_worker("--health-port", "0", app="app.py:only")
    port = worker.wait_event("health")["port"]
    worker.wait_event("serving")
    done = hf("submit", "app.py:tasks", "ada", "--task", "asks", "--no-follow")
    assert "no live worker serves asks (1 task waits, the oldest" in done.err
    followed = hf("submit", "app.py:tasks", "eva", "--task", "asks", "--timeout", "3", code=8)
    assert "no live worker serves asks (2 tasks wait" in followed.err
    assert "no live worker serves asks (2 tasks wait" in hf.look("doctor", code=1).out
    assert _figures(ask(port, "/metrics").text)['holdfast_tasks_unserved{name="asks"}'] == 2
