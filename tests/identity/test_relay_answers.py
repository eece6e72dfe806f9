"""What an agent believes of a relay, and what a relay takes from anyone: real processes on loopback."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Generator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, cast

import apsw
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

sys.path.insert(0, str(Path(__file__).parent))

from cast import SODIUM, Owner, key, refused

from holdfast.cli.main import main
from holdfast.errors import (
    BadInput,
    BadRecord,
    RelayBusy,
    RelayNotAdmitted,
    RelayRefused,
    RelayUnfit,
    RelayUnreachable,
    RelayUntrusted,
)
from holdfast.host.sqlite import Db
from holdfast.identity.records.encodings import PublicKey, digest_of, key_digest
from holdfast.identity.records.records import Keys, parse_receipt
from holdfast.identity.records.signed import Family, Reason, sealed
from holdfast.identity.statements.relay_answer import RelayAnswer, digest_of_request, read_answer, signed_answer
from holdfast.identity.witness.relay_link import RelayLink
from holdfast.identity.witness.witness_relay import RelayWitness
from holdfast.layout.witness_address import WitnessRelay, parse_relay_address, parse_witness_address
from holdfast.relay.server.limits import InMemory
from holdfast.relay.server.serve import HANDSHAKES_MAX, HEADERS_S
from holdfast.relay.server.store import Store
from holdfast_proofs.support.relays import RelayProcess, answering, relays

CHANGED = str(Path(__file__).parent / "programs" / "changed_relay.py")
NONCE = "AAAAAAAAAAAAAAAAAAAAAAAA"


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Generator[RelayProcess]:
    with relays(tmp_path_factory.mktemp("relay"), "r") as (one,):
        yield one


def owner_at(relay: RelayProcess, name: str) -> Owner:
    return Owner(name=name, wit=Keys((PublicKey(relay.at.key),), 1))


def submitted(relay: RelayProcess, line: bytes) -> bytes:
    answer = asyncio.run(relay.witness.submit(line))
    assert isinstance(answer, bytes), answer
    return answer


# the address


@pytest.mark.parametrize(
    "text",
    [
        "https://relay.example",
        "https://relay.example#",
        "https://relay.example#z6Mkshort",
        "http://relay.example#" + key("w").public,
        "https://user:secret@relay.example#" + key("w").public,
        "https://relay.example/path#" + key("w").public,
        "https://relay.example:99999#" + key("w").public,
        "https://relay_example#" + key("w").public,
    ],
)
def test_an_address_without_a_key_or_without_tls_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        parse_witness_address(text)


def test_an_address_has_one_spelling() -> None:
    found = parse_relay_address(f"https://Relay.Example:443/#{key('w').public}")
    assert str(found) == f"https://relay.example#{key('w').public}"
    assert parse_witness_address(str(found)) == found
    assert parse_relay_address(f"http://[::1]:7411#{key('w').public}").host == "::1"


# believing


def test_row_09_an_answer_of_a_relay_counts_for_its_request_alone() -> None:
    ask = digest_of_request("GET", "/v1/relay", NONCE, b"")
    raw = signed_answer(ask=ask, status=200, content=b"yes", now=1, signer=key("relay"))

    def read(raw: bytes, **changes: object) -> bytes:
        given = {"asks": {ask}, "status": 200, "key": key("relay").public, "port": SODIUM} | changes
        return read_answer(raw, **given)  # pyright: ignore[reportArgumentType] - by name

    assert read(raw) == b"yes"
    wrong: list[tuple[bytes, dict[str, object]]] = [
        (raw.replace(b"yes", b"no!"), {}),
        (raw.partition(b"\n")[0], {}),
        (b"yes", {}),
        (raw, {"status": 404}),
        (raw, {"key": key("other").public}),
        (raw, {"asks": {digest_of_request("GET", "/v1/relay", NONCE[::-1] + "B", b"")}}),
        (raw, {"asks": {digest_of_request("GET", "/v1/relay", NONCE, b"body")}}),
        (raw.replace(b'"at":1', b'"at":2'), {}),
    ]
    for changed, given in wrong:
        with pytest.raises(BadInput):
            read(changed, **given)


def test_the_line_of_an_answer_is_that_of_any_record_and_one_of_another_form_is_read_too() -> None:
    ask = digest_of_request("GET", "/v1/relay", "n" * 24, b"")
    signer = key("relay")
    answer = RelayAnswer(wit=signer.public, ask=ask, st=200, body=digest_of(b"yes"), at=1)
    line = sealed(answer, Family.RELAY, (signer,)).line()
    assert signed_answer(ask=ask, status=200, content=b"yes", now=1, signer=signer) == line + b"\nyes"

    def read(raw: bytes) -> bytes:
        return read_answer(raw, asks={ask}, status=200, key=signer.public, port=SODIUM)

    far = sealed(replace(answer, at=10**15), Family.RELAY, (signer,)).line()  # more digits than a clock has
    assert read(far + b"\nyes") == b"yes"
    twice = sealed(answer, Family.RELAY, (signer, key("other"))).line()
    for raw in (line.replace(b'"at":1,', b'"at":2,'), line.replace(b'"at":1,', b'"at":01,'), twice):
        with pytest.raises(BadRecord):
            read(raw + b"\nyes")
    with pytest.raises(BadRecord):
        read(line + b"\nyes ")


def test_a_relay_with_another_key_is_not_believed(relay: RelayProcess) -> None:
    link = RelayLink(WitnessRelay(relay.at.url, key("other").public), SODIUM)
    with pytest.raises(RelayUntrusted, match=f"signed by {relay.at.key}"):
        asyncio.run(link.describe())


def _always(answer: tuple[int, bytes], *_: object) -> tuple[int, bytes]:
    return answer


def test_a_replayed_or_unsigned_answer_is_not_believed_and_a_proxys_error_says_nothing() -> None:
    kept = signed_answer(
        ask=digest_of_request("GET", "/v1/relay", NONCE, b""), status=200, content=b"{}", now=1, signer=key("relay")
    )
    cases = [
        ((200, kept), RelayUntrusted),
        ((200, b"<html>welcome</html>"), RelayUntrusted),
        ((404, b"nothing"), RelayUntrusted),
        ((502, b"<html>bad gateway</html>"), RelayUnreachable),
    ]
    for answer, expected in cases:
        with answering(partial(_always, answer)) as url, pytest.raises(expected):
            asyncio.run(RelayLink(WitnessRelay(url, key("relay").public), SODIUM).describe())


def test_a_relay_that_is_not_there_or_never_ends_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.identity.witness.relay_link.ANSWER_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as door:
        at = WitnessRelay(f"http://127.0.0.1:{door.getsockname()[1]}", key("relay").public)
        with pytest.raises(RelayUnreachable, match="no whole answer"):
            asyncio.run(RelayLink(at, SODIUM).describe())
    with pytest.raises(RelayUnreachable):
        asyncio.run(RelayLink(at, SODIUM).describe())


# taking


def test_receipts_survive_a_kill_and_a_second_record_is_contested(relay: RelayProcess) -> None:
    owner, thief = owner_at(relay, "kills"), owner_at(relay, "kills thief")
    first = submitted(relay, owner.inception().line())
    mine = owner.rotation(owner.begun(), 1)
    receipt = submitted(relay, mine.line())
    relay.kill()
    relay.start()
    assert submitted(relay, mine.line()) == receipt
    assert submitted(relay, owner.inception().line()) == first
    his = thief.rotation(owner.begun(), 1, by=owner.next(1))
    assert refused(asyncio.run(relay.witness.submit(his.line()))) is Reason.CONTESTED
    copy = asyncio.run(relay.witness.fetch(owner.begun().id))
    assert copy is not None
    assert his.line() in copy.records


def test_a_kill_between_commit_and_answer_gives_the_same_receipt_when_asked_again(tmp_path: Path) -> None:
    dying = RelayProcess(tmp_path / "r", program=(CHANGED, "dies")).start()
    owner = owner_at(dying, "owner")
    line = owner.inception().line()
    with pytest.raises(RelayUnreachable):
        asyncio.run(dying.witness.submit(line))
    assert dying.stop() == -9
    again = RelayProcess(dying.folder, address=dying.address).start()
    try:
        copy = asyncio.run(again.witness.fetch(owner.begun().id))
        assert copy is not None
        assert copy.records == (line,)
        assert copy.receipts == (submitted(again, line),)
    finally:
        again.kill()


def test_what_is_too_large_malformed_or_elsewhere_is_refused_with_the_reason(relay: RelayProcess) -> None:
    owner = owner_at(relay, "refusals")
    id_ = owner.begun().id

    async def ask(method: str, target: str, body: bytes) -> None:
        await relay.link._taken(method, target, body)

    cases = [
        (("PUT", f"/v1/agents/{id_}", b"x" * 9_000), RelayRefused, "may have 8,193 bytes"),
        (("POST", f"/v1/log/{id_}", b"{}\n"), RelayRefused, "lacks 'b'"),
        (("POST", f"/v1/log/{id_}", b"no line"), RelayRefused, "each a line"),
        (("POST", f"/v1/log/{owner_at(relay, 'x').begun().id}", owner.inception().line() + b"\n"), RelayRefused, id_),
        (("GET", "/v1/log/nobody", b""), RelayRefused, "id of an agent"),
        (("GET", f"/v1/log/{id_}", b""), RelayRefused, "does not know"),
        (("GET", "/v1/log?recovery=x", b""), RelayRefused, "52 characters"),
        (("GET", "/v1/handles/A", b""), RelayRefused, "not a handle"),
        (("PUT", f"/v1/agents/{id_}", b"{}"), RelayRefused, "lacks 'b'"),
        (("DELETE", f"/v1/log/{id_}", b""), RelayRefused, "no such call"),
        (("GET", "/v2/log", b""), RelayRefused, "no such call"),
    ]
    for words, expected, text in cases:
        with pytest.raises(expected, match=text):
            asyncio.run(ask(*words))
    assert asyncio.run(relay.link.find_log(id_)) is None
    forged = owner.inception().line().replace(b'"sig":[["', b'"sig":[["').replace(b'A",', b'A",')
    bad = forged[:-10] + (b"AAAAA" if forged[-10:-5] != b"AAAAA" else b"BBBBB") + forged[-5:]
    answer = asyncio.run(relay.witness.submit(bad))
    assert not isinstance(answer, bytes)
    assert asyncio.run(relay.link.find_log(id_)) is None


def test_a_log_is_found_by_the_digest_of_a_recovery_key_the_first_registered_first(relay: RelayProcess) -> None:
    owner, copier = owner_at(relay, "found"), owner_at(relay, "copier")
    copier.paper = owner.paper  # an inception can copy the commitment of another one
    for one in (owner, copier):
        submitted(relay, one.inception().line())
    digest = key_digest(owner.paper(1).public)
    assert asyncio.run(relay.link.find_agents((digest,))) == (owner.begun().id, copier.begun().id)
    log = owner.begun()
    submitted(relay, owner.recovery(log).line())
    later = key_digest(owner.paper(2).public)
    assert asyncio.run(relay.link.find_agents((key_digest(key("no").public), later))) == (log.id,)
    assert asyncio.run(relay.link.find_agents((key_digest(key("no").public),))) == ()


def test_row_28_one_invite_registers_one_agent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with relays(tmp_path, "r", options=()) as (relay,):
        owner, other = owner_at(relay, "owner"), owner_at(relay, "other")
        with pytest.raises(RelayNotAdmitted):
            asyncio.run(relay.witness.submit(owner.inception().line()))
        assert main(["relay", "invite", "--folder", str(relay.folder), "--json"]) == 0
        invite = json.loads(capsys.readouterr().out)["invite"]

        def with_invite(line: bytes, text: str) -> object:
            at = WitnessRelay(relay.at.url, relay.at.key, invite=text)
            return asyncio.run(RelayWitness(RelayLink(at, SODIUM)).submit(line))

        with pytest.raises(RelayNotAdmitted, match="does not know this invite"):
            with_invite(owner.inception().line(), "guessed")
        receipt = with_invite(owner.inception().line(), invite)
        assert parse_receipt(receipt).record.wit == relay.at.key  # pyright: ignore[reportArgumentType]
        with pytest.raises(RelayNotAdmitted, match="another agent has used this invite"):
            with_invite(other.inception().line(), invite)
        assert asyncio.run(relay.link.find_log(other.begun().id)) is None
        # A registered agent needs none.
        submitted(relay, owner.rotation(owner.begun(), 1).line())


def test_an_open_relay_has_limits_per_address_and_per_agent(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    folder.mkdir(mode=0o700)
    (folder / "relay.toml").write_text('registration = "open"\nregistrations_an_hour = 2\n')
    with relays(tmp_path, "r", options=()) as (relay,):
        for number in range(2):
            submitted(relay, owner_at(relay, f"owner {number}").inception().line())
        with pytest.raises(RelayBusy, match="too many requests; wait"):
            asyncio.run(relay.witness.submit(owner_at(relay, "third").inception().line()))
        known = owner_at(relay, "owner 0").inception().line()

        async def flood() -> None:
            for _ in range(100):
                await relay.witness.submit(known)

        with pytest.raises(RelayBusy):
            asyncio.run(flood())
        assert asyncio.run(relay.link.find_log(owner_at(relay, "owner 0").begun().id)) is not None


def test_a_head_that_never_ends_is_cut_off_and_others_are_served(tmp_path: Path) -> None:
    """After ten seconds; here half a second. The second request of a connection is timed as the first one is."""
    relay = RelayProcess(tmp_path / "r", program=(CHANGED, "hasty")).start()
    try:
        with socket.create_connection(("127.0.0.1", relay.port)) as slow:
            slow.settimeout(30)
            slow.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
            assert slow.recv(1000).startswith(b"HTTP/1.1 200")
            slow.sendall(b"GET /v1/relay HTTP/1.1\r\nhost: x\r\n")
            asyncio.run(relay.link.describe())
            while slow.recv(1000):
                pass
        with socket.create_connection(("127.0.0.1", relay.port)) as slow:
            slow.settimeout(30)
            head = (
                f"POST /v1/log/{owner_at(relay, 'slow').begun().id} HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n"
            )
            slow.sendall(head.encode() + b"{")
            answer = b""
            while b'"code":"too-slow"' not in answer:  # head and body may come one after the other
                more = slow.recv(10_000)
                assert more, answer
                answer += more
    finally:
        relay.kill()


def test_garbage_of_strangers_does_not_fill_the_log(tmp_path: Path) -> None:
    relay = RelayProcess(tmp_path / "r").start()
    log, upgrade = tmp_path / "r.log", "connection: upgrade\r\nupgrade: websocket\r\n"
    try:
        before = log.read_text()
        for raw in (b"\x16\x03\r\n\r\n", f"GET /v1/relay HTTP/1.1\r\nhost: x\r\n{upgrade}\r\n".encode()):
            with socket.create_connection(("127.0.0.1", relay.port)) as stranger:
                stranger.settimeout(30)
                stranger.sendall(raw)
                assert stranger.recv(1000).startswith(b"HTTP/1.1")
        assert log.read_text() == before
    finally:
        relay.kill()


def test_what_callers_keep_in_memory_has_a_bound_for_each_address_and_in_all() -> None:
    mib, ended = 1024 * 1024, list[str]()
    kept = InMemory[str](ended.append)
    for number in range(10):
        kept.add(f"mine {number}", "10.0.0.1", mib)
    assert ended == ["mine 0", "mine 1"]
    for number in range(30):
        kept.add(f"other {number}", f"10.0.1.{number}", mib)
    assert ended == [f"mine {number}" for number in range(8)]
    kept.add("large", "10.0.2.1", 100 * mib)
    assert "large" not in ended, "one answer may be larger: a key log"


# the process


def test_a_stopped_relay_ends_with_0_and_another_one_cannot_serve_its_folder(tmp_path: Path) -> None:
    relay = RelayProcess(tmp_path / "r").start()
    try:
        with pytest.raises(RelayUnfit, match="another process"):
            Store(relay.folder)
        assert {one.stat().st_mode & 0o777 for one in relay.folder.iterdir() if one.suffix != ".toml"} == {0o600}
    finally:
        assert relay.stop() == 0
    Store(relay.folder).close()


def takes_callers(relay: RelayProcess) -> bool:
    try:
        socket.create_connection(("127.0.0.1", relay.port)).close()
    except ConnectionRefusedError:
        return False
    return True


def test_a_request_that_is_under_way_is_answered_before_the_relay_stops(tmp_path: Path) -> None:
    with relays(tmp_path, "r") as (relay,):
        assert relay.process is not None
        owner = owner_at(relay, "draining")
        line = owner.inception().line() + b"\n"
        with socket.create_connection(("127.0.0.1", relay.port)) as caller:
            caller.settimeout(30)
            head = f"POST /v1/log/{owner.begun().id} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(line)}\r\n"
            caller.sendall(head.encode() + b"expect: 100-continue\r\n\r\n")
            assert caller.recv(1000).startswith(b"HTTP/1.1 100")  # it waits for the body
            relay.process.send_signal(signal.SIGTERM)
            while takes_callers(relay):
                pass
            caller.sendall(line)
            assert caller.recv(1000).startswith(b"HTTP/1.1 200")
        assert relay.stop() == 0


def test_a_commit_that_fails_answers_no_one_and_leaves_nothing(tmp_path: Path) -> None:
    """Several acts share the commit: none of them has happened. The next ones work again."""
    store = Store(tmp_path / "r")
    assert store._db.pragma("synchronous") == 2
    assert store._db.pragma("journal_mode") == "wal"
    db, full = store._db, [True]

    class FullDisk:
        def execute(self, sql: str, *more: Any) -> Any:  # Any: as the connection
            if sql == "COMMIT" and full.pop():
                raise apsw.FullError("disk is full")
            return db.execute(sql, *more)

        def __getattr__(self, name: str) -> Any:
            return getattr(db, name)

    def act(db: Db) -> str:
        db.execute("INSERT INTO meta VALUES ('x', 'y')")
        return "done"

    told: list[str] = []
    store.on_change = told.append
    try:
        store._db = cast(Db, FullDisk())
        with pytest.raises(RelayBusy, match="disk"):
            store.write(act)
        assert store.failed
        assert store.read(lambda db: db.execute("SELECT * FROM meta WHERE name = 'x'").fetchall()) == []
        store._db = db
        assert store.write(act) == "done"
        assert not store.failed
        assert [bool(one) for one in told] == [True, False], "the operator's log says both"

        def fails(db: Db) -> None:
            db.execute("UPDATE meta SET value = 'z' WHERE name = 'x'")
            raise BadInput("no")

        with pytest.raises(BadInput):
            store.write(fails)
        assert store.read(lambda db: db.execute("SELECT value FROM meta WHERE name = 'x'").fetchall()) == [("y",)]
    finally:
        store._db = db
        store.close()


def test_settings_that_would_serve_others_without_tls_are_refused(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "relay", "serve", "--folder", str(tmp_path / "r"), "--listen", "0.0.0.0:0"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "without TLS" in done.stderr


def _certificate(folder: Path) -> tuple[Path, Path]:
    """For localhost, signed by itself; and its key."""
    secret = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(secret.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(secret, hashes.SHA256())
    )
    cert, kept = folder / "cert.pem", folder / "key.pem"
    cert.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    kept.write_bytes(
        secret.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return cert, kept


def test_a_relay_serves_tls_and_an_unknown_certificate_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cert, kept = _certificate(tmp_path)
    folder = tmp_path / "r"
    folder.mkdir(mode=0o700)
    (folder / "relay.toml").write_text(f'registration = "open"\ntls_cert = "{cert}"\ntls_key = "{kept}"\n')
    relay = RelayProcess(folder, options=()).start()
    try:
        assert relay.at.url.startswith("https://127.0.0.1:")
        at = WitnessRelay(f"https://localhost:{relay.port}", relay.at.key)
        with pytest.raises(RelayUnreachable, match="its certificate is not valid: self-signed certificate"):
            asyncio.run(RelayLink(at, SODIUM).describe())
        monkeypatch.setenv("SSL_CERT_FILE", str(cert))
        assert asyncio.run(RelayLink(at, SODIUM).describe()).registration == "open"
        owner = owner_at(relay, "tls")
        assert isinstance(asyncio.run(RelayWitness(RelayLink(at, SODIUM)).submit(owner.inception().line())), bytes)
    finally:
        relay.kill()


def test_connections_that_begin_no_handshake_do_not_keep_others_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cert, kept = _certificate(tmp_path)
    folder = tmp_path / "r"
    folder.mkdir(mode=0o700)
    (folder / "relay.toml").write_text(f'tls_cert = "{cert}"\ntls_key = "{kept}"\nconnections_max = 20\n')
    monkeypatch.setenv("SSL_CERT_FILE", str(cert))
    relay = RelayProcess(folder, options=()).start()
    silent = [socket.create_connection(("127.0.0.1", relay.port)) for _ in range(HANDSHAKES_MAX // 2 + 20)]
    try:
        at = WitnessRelay(f"https://localhost:{relay.port}", relay.at.key)
        assert asyncio.run(RelayLink(at, SODIUM).describe()).registration == "invite"
        silent[0].settimeout(HEADERS_S / 2)
        assert silent[0].recv(1) == b"", "the oldest one was closed for a newer one"
        assert relay.stop() == 0
    finally:
        for one in silent:
            one.close()
        if relay.process is not None:
            relay.kill()


def test_a_stranger_cannot_use_up_the_writes_of_an_agent(relay: RelayProcess) -> None:
    """Of another address: here 127.0.0.2, which is this machine as well."""
    owner = owner_at(relay, "starved")
    submitted(relay, owner.inception().line())
    target = f"/v1/log/{owner.begun().id}"
    said = b""
    for _ in range(100):
        with socket.create_connection(("127.0.0.1", relay.port), source_address=("127.0.0.2", 0)) as stranger:
            stranger.sendall(f"POST {target} HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\n{{}}\n".encode())
            said = stranger.recv(100)
    assert b"429" in said
    submitted(relay, owner.rotation(owner.begun(), 1).line())


def test_health_and_metrics(relay: RelayProcess) -> None:
    from urllib.error import HTTPError
    from urllib.request import urlopen

    with urlopen(f"{relay.at.url}/healthz") as answer:
        assert json.load(answer) == {"ok": True, "why": ""}
    with pytest.raises(HTTPError, match="404"):
        urlopen(f"{relay.at.url}/v1/handles/nobody-has-it")
    with urlopen(f"{relay.at.url}/metrics") as answer:
        text = answer.read().decode()
    assert "holdfast_relay_agents " in text
    assert 'holdfast_relay_requests_total{method="GET",status="404"}' in text
