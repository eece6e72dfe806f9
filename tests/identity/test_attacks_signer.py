"""Row 23: a tool that a model drives reaches no key, whatever it is talked into."""

from __future__ import annotations

import base64
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from cast import key
from lives import lease_of, settings, submit, wait_for, worker
from quick_agent import Agent, make_agent

from holdfast.demo.server import is_hidden
from holdfast.downstream.process import start_blocking
from holdfast.errors import BadInput, SignerRefused, SignerUnavailable
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.records.encodings import digest_of
from holdfast.identity.speaker.signer import BURST, LENGTH, VERBS, request
from holdfast.identity.speaker.signer_client import SignerClient, SignerRing, SignerSpeaker
from holdfast.identity.statements.certificate import ObserverState, Role, find_fault_in_certificate
from holdfast.identity.statements.statements import JournalMark, Relay
from holdfast.identity.vault.ring import VaultRing, read_escrow

PROGRAM = Path(__file__).parent / "programs" / "as_user.py"
INSTANCE = key("instance").public
SIGNER, AGENT, STRANGER = 61_801, 61_802, 61_803
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="other users: only root can be them")


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that other users can pass through; those of pytest they cannot."""
    made = Path(tempfile.mkdtemp(prefix="hf"))
    made.chmod(0o711)
    yield made
    shutil.rmtree(made)


@contextmanager
def started(words: list[str], path: Path) -> Generator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        end = time.monotonic() + 20
        while not path.exists():
            assert process.poll() is None, process.stderr and process.stderr.read()
            assert time.monotonic() < end
            time.sleep(0.02)
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


@contextmanager
def signer(agent: Agent, path: Path) -> Generator[subprocess.Popen[bytes]]:
    """The command itself, of this user."""
    program = (
        "import sys, argparse\n"
        "from holdfast.cli.identity import identity\n"
        "args = argparse.Namespace(home=sys.argv[1], socket=sys.argv[2], allow=[])\n"
        "sys.exit(identity.run_signer(args))"
    )
    words = [sys.executable, "-P", "-c", program, str(agent.folder), str(path)]
    with started(words, path) as process:
        yield process


@needs_root
@pytest.mark.skipif(is_hidden(), reason="other users cannot enter this clone")
def test_row_23_a_tool_with_the_agents_rights_reaches_no_key(place: Path) -> None:
    """The signer is another user; the tool has the agent's."""
    own, run = place / "signer", place / "run"
    own.mkdir(mode=0o700)
    run.mkdir(mode=0o711)
    agent = make_agent(own)
    log = agent.log
    for folder in (own, run):
        for name in (folder, *folder.rglob("*")):
            os.chown(name, SIGNER, SIGNER)
    path = run / "ada.sock"
    secret = [
        agent.vault_folder / "op.age",
        agent.vault_folder / "slots.json",
        agent.second / "next.age",
        own / "unlock",
        agent.folder / "kel.jsonl",
    ]
    words = [sys.executable, str(PROGRAM), str(SIGNER), str(AGENT), "signer", str(agent.folder), str(path), str(AGENT)]
    with started(words, path) as process:
        assert path.lstat().st_mode & 0o777 == 0o660
        assert (path.lstat().st_uid, path.lstat().st_gid) == (SIGNER, AGENT)
        done = _as(AGENT, "tool", str(process.pid), str(path), *map(str, secret))
        found = json.loads(done)
        assert set(found["files"].values()) == {"PermissionError"}
        assert set(found["folders"].values()) == {"PermissionError"}
        assert set(found["process"].values()) == {"PermissionError"}
        assert set(found["socket"].values()) == {BadInput.code}
        assert found["counts_as"] == 1
        assert found["families"] == ["ans"]
        assert found["id"] == log.id
        assert found["ring"] == 32
        assert _as(STRANGER, "ask", str(path)) == "PermissionError"
        # Let in by the file's mode, but not one of those it was started for.
        path.chmod(0o666)
        assert _as(STRANGER, "ask", str(path)) == SignerRefused.code
        # The same user as the signer cannot look into it either.
        same = json.loads(_as(SIGNER, "tool", str(process.pid), str(path)))
        del same["process"]["kill"]
        assert set(same["process"].values()) == {"PermissionError"}
        assert process.poll() is None


def test_row_24_a_worker_with_a_signer_leaves_no_key_in_its_folder_or_logs(agent: Agent, tmp_path: Path) -> None:
    """It holds the agent's lease and does its work, and never sees a key that signs as the agent,
    nor writes down one that does not."""
    path, home = tmp_path / "s", tmp_path / "agent"
    home.mkdir(mode=0o700)
    toml = home / "holdfast.toml"
    toml.write_text(f'agent = "ada"\n[identity]\nsigner = "{path}"\n{settings(tmp_path)}')
    toml.chmod(0o600)
    with signer(agent, path), start_blocking("unrepeatable") as far_end:
        submit(home, count=3)
        with worker(home, url=far_end.url, name="agent") as process:
            wait_for(lambda: far_end.ledger().count == 3)
            wait_for(lambda: process.events("run-ended"))
    assert lease_of(home)["state"] == "held"
    assert not (home / "keys.json").exists()
    with agent.vault() as vault:
        canaries = [
            bytes.fromhex(vault.read("op")["current"]["seed"]),
            VaultRing(vault).k_effect,
            VaultRing(vault).journal_key(1),
            read_escrow(vault).vault_root,
        ]
        text = vault.identity.reveal().encode()
    forms = [text, *canaries, *(one.hex().encode() for one in canaries)]
    forms += [base64.b64encode(one).rstrip(b"=") for one in canaries]
    looked = 0
    for file in (*home.rglob("*"), *tmp_path.glob("*.log"), *(tmp_path / "arbiter").rglob("*")):
        if file.is_file():
            raw, looked = file.read_bytes(), looked + 1
            assert not [one for one in forms if one in raw], file
    assert looked > 8
    instance = json.loads((home / "instance" / "key.json").read_bytes())["seed"].encode()
    assert [file for file in home.rglob("*") if file.is_file() and instance in file.read_bytes()] == [
        home / "instance" / "key.json"
    ]


def _as(user: int, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(user), str(user), *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def agent(tmp_path: Path) -> Agent:
    return make_agent(tmp_path)


def test_the_acts_are_the_same_through_the_socket(agent: Agent, tmp_path: Path) -> None:
    path = tmp_path / "s"
    with signer(agent, path) as process:
        assert path.lstat().st_mode & 0o777 == 0o600
        speaker = SignerSpeaker(SignerClient(path))
        log = speaker.log()
        assert (speaker.id, log) == (agent.log.id, agent.log)
        now = int(time.time())
        shown = speaker.certify(inst=INSTANCE, role=Role.PRIMARY, incarnation=1, host=digest_of(b"h"), life_s=60)
        moment = ObserverState(now=now, head_seen_at=now)
        assert find_fault_in_certificate(shown, log, moment, port=Sodium()) is None
        relay = Relay(url="https://r.example", wit=INSTANCE, prio=1, domain="r")
        told = speaker.profile(
            ver=1,
            life_s=60,
            relays=(relay,),
            handles=("ada@r.example",),
            policy=(("open", True),),
            left=("https://old.example",),
        )
        assert told.record.relays == (relay,)
        head = speaker.seal_head(
            incarnation=1,
            seq=2,
            manifest=digest_of(b"m"),
            archive="a",
            size_bytes=1,
            files=1,
            journal=JournalMark(id="j", sequence=1, incarnation=1),
            prev=digest_of(b"p"),
        )
        assert head.record.journal is not None
        with pytest.raises(BadInput):
            speaker.answer("short")
        with pytest.raises(BadInput):
            speaker.certify(inst=INSTANCE, role=Role.PRIMARY, incarnation=1, host=digest_of(b"h"), life_s=9_999)
        ring, keys = SignerRing(SignerClient(path)), agent.vault()
        assert ring.k_effect == VaultRing(keys).k_effect
        assert ring.journal_key(1) == VaultRing(keys).journal_key(1)
        assert "hf" not in repr(ring).replace(str(path), "")
        agent.rotate()
        assert speaker.answer("challenge-challenge").record.position == (0, 1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
    assert not path.exists()
    with pytest.raises(SignerUnavailable):
        speaker.answer("challenge-challenge")


def test_nothing_that_is_sent_ends_it_and_too_much_is_not_answered(agent: Agent, tmp_path: Path) -> None:
    path, dice = tmp_path / "s", random.Random(23)
    good = [request(verb, {}) for verb in VERBS]
    with signer(agent, path) as process:
        for round_ in range(150):
            frame = bytearray(dice.choice(good))
            for _ in range(dice.randrange(6)):
                frame[dice.randrange(len(frame))] = dice.randrange(256)
            if round_ % 7 == 0:
                frame = bytearray(dice.randbytes(dice.randrange(64)))
            _send(path, bytes(frame))
        _send(path, LENGTH.pack(2**31) + b"x")
        _send(path, LENGTH.pack(8_193) + b"x" * 8_193)
        with ExitStack() as idle:  # more than it has room for
            for _ in range(80):
                with suppress(BlockingIOError):
                    idle.enter_context(_connect(path))
        time.sleep(1.0)
        client = SignerClient(path)
        with pytest.raises(SignerUnavailable, match="more than"):
            _ask_often(client, int(2 * BURST) + 40)
        time.sleep(0.5)
        assert client.ask("id")["id"] == agent.log.id
        assert process.poll() is None


def test_a_second_signer_does_not_take_the_socket_of_the_first(agent: Agent, tmp_path: Path) -> None:
    path = tmp_path / "s"
    with signer(agent, path) as first:
        with signer(agent, path) as second:
            assert second.wait(20) != 0
        assert SignerClient(path).ask("id")["id"] == agent.log.id
        first.kill()
        first.wait()
    assert path.exists()  # left by the kill
    with signer(agent, path):
        for _ in range(100):
            try:
                SignerClient(path).ask("id")
                break
            except SignerUnavailable:
                time.sleep(0.05)
        assert SignerClient(path).ask("id")["id"] == agent.log.id


def test_an_answer_that_is_not_what_was_asked_for_is_refused(tmp_path: Path) -> None:
    """Whoever took the place of the signer's socket fools nobody."""
    path = tmp_path / "s"
    for reply in (b'{"ok":{"id":5}}', b"[]", b'{"ok":{"line":"{}"}}', b'{"error":{"code":"x"}}', b"{", b""):
        with _liar(path, reply), pytest.raises((SignerRefused, SignerUnavailable)):
            _ = SignerSpeaker(SignerClient(path, timeout_s=5)).id


@contextmanager
def _liar(path: Path, reply: bytes) -> Generator[None]:
    import threading

    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.bind(str(path))
        link.listen()

        def serve() -> None:
            one, _ = link.accept()
            with one:
                one.recv(1_000)
                one.sendall(LENGTH.pack(len(reply)) + reply if reply else b"")

        thread = threading.Thread(target=serve)
        thread.start()
        yield
        thread.join()


def _ask_often(client: SignerClient, times: int) -> None:
    for _ in range(times):
        client.ask("id")


def _connect(path: Path) -> socket.socket:
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    link.settimeout(5)
    try:
        link.connect(str(path))
    except OSError:
        link.close()
        raise
    return link


def _send(path: Path, frame: bytes) -> None:
    with _connect(path) as link:
        try:
            link.sendall(frame)
            link.shutdown(socket.SHUT_WR)
            link.recv(1 << 16)
        except OSError:
            pass
