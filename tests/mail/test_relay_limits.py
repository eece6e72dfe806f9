"""What a relay takes from anyone, and what that may cost it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import Generator
from http.client import HTTPConnection
from pathlib import Path

import msgspec
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from direct_relay import DirectChannel, direct_relay

from holdfast.errors import RelayBusy, RelayRefused, RelayUntrusted
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.records.records import Keys
from holdfast.identity.records.secret_bytes import KeyPair
from holdfast.identity.statements.certificate import parse_certificate
from holdfast.relay.client.channel import RelayChannel, ReplacedHere
from holdfast.relay.client.mailbox import CONTACTS_MAX, RECEIVED_MAX, REFUSED_MAX
from holdfast.relay.protocol.calls import (
    MALFORMED,
    NUMBER_MAX,
    RATE,
    REASON_CHARS_MAX,
    UNKNOWN_SENDER,
    Ack,
    LoginAnswer,
)
from holdfast.relay.server import limits, mail_calls
from holdfast.relay.server.app import Relay
from holdfast.relay.server.limits import Buckets, Rate
from holdfast.relay.server.serve import AGENT_CONNECTIONS, Callers, JoinedWrites
from holdfast_proofs.support.relay_agents import ENTROPY, RelayAgent
from holdfast_proofs.support.relays import RelayProcess, relays


@pytest.fixture
def relay(tmp_path: Path) -> Generator[Relay]:
    with direct_relay(tmp_path / "r") as made:
        yield made


@pytest.mark.parametrize(
    "body", [b'{"received":[18446744073709551615]}', b'{"refused":[[9223372036854775808,"x"]]}', b'{"mark":1e300}']
)
def test_a_number_that_no_mailbox_has_is_malformed(relay: Relay, body: bytes) -> None:
    async def story() -> None:
        channel = DirectChannel(relay)
        agent = await channel.registered()
        token = await channel.entered(agent)
        with pytest.raises(RelayRefused, match=r"received|refused|mark"):
            await channel.call("POST", f"/v1/mailbox/{agent.id}/ack", body, token=token)

    asyncio.run(story())


@pytest.mark.parametrize("contact", ["x" * 120_000, "hf1" + "!" * 58, "hf1" + "q" * 59, "", "HF1" + "q" * 58])
def test_a_contact_is_the_id_of_an_agent(relay: Relay, contact: str) -> None:
    async def story() -> None:
        channel = DirectChannel(relay)
        agent = await channel.registered()
        token = await channel.entered(agent)
        await channel.acknowledge(agent.id, token, Ack(contacts=(RelayAgent().id,)))
        with pytest.raises(RelayRefused, match="contacts"):
            await channel.acknowledge(agent.id, token, Ack(contacts=(contact,)))
        assert relay.store.read(lambda db: db.execute("SELECT max(length(peer)) FROM contact").fetchall()) == [(61,)]

    asyncio.run(story())


def test_a_fault_of_the_relay_is_a_signed_answer_without_its_details(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a detail")

    async def story() -> None:
        channel = DirectChannel(relay)
        monkeypatch.setattr(relay._logs, "find", broken)
        with pytest.raises(RelayRefused, match="its log says why") as failed:
            await channel.call("GET", f"/v1/log/{RelayAgent().id}")
        assert "a detail" not in str(failed.value)

    asyncio.run(story())


def test_envelopes_with_a_bad_signature_are_charged_to_their_address_and_not_to_the_agent_they_name(
    relay: Relay,
) -> None:
    relay._buckets["mail"] = Buckets(Rate(burst=100, per_s=1e-6))
    relay.mail._buckets = Buckets(Rate(burst=4, per_s=1e-6))

    async def story() -> None:
        honest = DirectChannel(relay, "10.0.0.2")
        ada, bob = await honest.registered(), await honest.registered()
        good = ada.envelope(bob, 1)
        forged = [good[:-1] + bytes((good[-1] ^ 1,))] * 10
        thief = DirectChannel(relay)
        for _ in range(2):
            answer, _ = await thief.submit(bob.id, forged[:5])
            assert {one.code for one in answer.items} == {MALFORMED}
        with pytest.raises(RelayBusy, match="too many requests"):
            await thief.submit(bob.id, forged)
        for number in range(4):
            answer, _ = await honest.submit(bob.id, [ada.envelope(bob, number)])
            assert answer.items[0].seq == number + 1
        answer, _ = await honest.submit(bob.id, forged[:1])
        assert answer.items[0].code == RATE, "no signature is checked for an agent that may send nothing now"

    asyncio.run(story())


def test_copies_of_a_message_are_charged_to_the_one_that_posts_them_and_not_to_its_sender(relay: Relay) -> None:
    """Anyone who got a message of an agent has such a copy."""
    relay._buckets["mail"] = Buckets(Rate(burst=100, per_s=1e-6))
    relay.mail._buckets = Buckets(Rate(burst=4, per_s=1e-6))

    async def story() -> None:
        honest, thief = DirectChannel(relay, "10.0.0.2"), DirectChannel(relay)
        ada, bob = await honest.registered(), await honest.registered()
        copies = [ada.envelope(bob, 1)] * 20
        token = await thief.entered(bob)
        for _ in range(5):  # the first time the relay has not seen it yet
            answer, _ = await thief.submit(bob.id, copies)
            assert {(one.code, one.seq) for one in answer.items} == {("", 1)}
        with pytest.raises(RelayBusy, match="too many requests"):
            await thief.submit(bob.id, copies[:1])
        for _ in range(5):  # logged in, it pays as that agent
            await thief.call("POST", f"/v1/mail/{bob.id}", msgspec.msgpack.encode(copies), token=token)
        with pytest.raises(RelayBusy, match="too many requests"):
            await thief.take(bob.id, token, after=0, wait_s=0)
        answer, _ = await honest.submit(bob.id, [ada.envelope(bob, number) for number in range(2, 6)])
        assert [one.code for one in answer.items] == ["", "", "", RATE]

    asyncio.run(story())


async def test_head_and_body_of_an_answer_leave_together_also_before_a_close() -> None:
    written: list[bytes] = []

    class Transport:
        closed = False

        def is_closing(self) -> bool:
            return self.closed

        def write(self, data: bytes) -> None:
            written.append(data)

        def close(self) -> None:
            self.closed = True

    transport = Transport()
    joined = JoinedWrites(transport, asyncio.get_running_loop())  # pyright: ignore[reportArgumentType]
    joined.write(b"head")
    joined.write(b"body")
    joined.write(b"")
    assert written == []
    await asyncio.sleep(0)
    assert written == [b"headbody"]
    joined.write(b"last")
    joined.close()
    joined.write(b"too late")
    await asyncio.sleep(0)
    assert (written, joined.is_closing()) == ([b"headbody", b"last"], True)


@pytest.mark.parametrize(
    "target", ["/v1/mail", "/v1/mail/", "/v1/mail/ID/", "/v2/mail/ID", "/v1/mailbox/ID/ack/", "/v1/mailbox//ack", "/x"]
)
def test_an_address_that_is_nearly_that_of_a_call_about_mail_is_none(relay: Relay, target: str) -> None:
    async def scenario() -> None:
        channel = DirectChannel(relay)
        agent = await channel.registered()
        with pytest.raises(RelayRefused, match="no such call"):
            await channel.call("POST", target.replace("ID", agent.id), b"")

    asyncio.run(scenario())


def test_requests_for_calls_that_no_relay_has_take_no_memory_and_cost_their_address(relay: Relay) -> None:
    relay._buckets["GET"] = Buckets(Rate(burst=9, per_s=1e-6))

    async def story() -> None:
        stranger, honest = DirectChannel(relay), DirectChannel(relay, "10.0.0.2")
        for number in range(9):
            with pytest.raises(RelayRefused, match="no such call"):
                await stranger.call("X" * 9_999 + str(number), ("/v1/relay", "/", f"/v1/{number}")[number % 3])
        for method in ("XX", "GET"):
            with pytest.raises(RelayUntrusted, match="429"):  # without a signature, which costs more than all else
                await stranger.call(method, "/")
        await honest.call("GET", "/v1/relay")
        assert set(relay.counts) == {("other", 404), ("other", 405), ("other", 429), ("GET", 429), ("GET", 200)}

    asyncio.run(story())


def test_key_logs_that_anyone_brings_take_few_bytes(relay: Relay, monkeypatch: pytest.MonkeyPatch) -> None:
    one = RelayAgent()
    for _ in range(10):
        one.rotate()
    size = sum(len(record.line()) + 1 for record in one.records)
    monkeypatch.setattr(mail_calls, "SENDERS_BYTES_MAX", 3 * size + size // 2)

    async def story() -> None:
        channel = DirectChannel(relay)
        bob = await channel.registered()
        senders = [RelayAgent() for _ in range(4)]
        for sender in senders:
            for _ in range(10):
                sender.rotate()
            for _ in range(2):  # the second time it takes the place of the first
                await channel.introduce(sender.id, [record.line() for record in sender.records])
            answer, _ = await channel.submit(bob.id, [sender.envelope(bob, 1)])
            assert answer.items[0].seq
        answers = [(await channel.submit(bob.id, [sender.envelope(bob, 2)]))[0] for sender in senders]
        assert [one.items[0].code for one in answers] == [UNKNOWN_SENDER, "", "", ""]
        kept = {id(log) for log, _ in relay.mail._senders.values()}
        assert {id(log) for log in relay.mail._judged.values()} == kept, "a log that has left is kept by nothing else"

    asyncio.run(story())


def statuses(relay: RelayProcess, count: int) -> list[int]:
    """Of requests that each name another sender."""
    found: list[int] = []
    caller, path = HTTPConnection("127.0.0.1", relay.port, timeout=30), f"/v1/mailbox/{RelayAgent().id}/nonce"
    for number in range(count):
        caller.request("GET", path, headers={"x-forwarded-for": f"10.0.0.{number}"})
        answer = caller.getresponse()
        answer.read()
        found.append(answer.status)
    caller.close()
    return found


def is_closed(caller: socket.socket) -> bool:
    caller.settimeout(30)
    try:
        caller.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        return caller.recv(1_000) == b""
    except ConnectionError:
        return True


def held(relay: RelayProcess, count: int) -> list[socket.socket]:
    """So many connections; tried again until the relay has seen that earlier ones are gone."""
    while True:
        callers = [socket.create_connection(("127.0.0.1", relay.port)) for _ in range(count)]
        if not any(map(is_closed, callers)):
            return callers
        for one in callers:
            one.close()


def test_bodies_that_never_become_whole_take_a_bounded_part_of_memory(tmp_path: Path) -> None:
    size = mail_calls.SUBMIT_BYTES_MAX
    head = f"POST /v1/mail/{RelayAgent().id} HTTP/1.1\r\nhost: x\r\ncontent-length: {size}\r\n\r\n".encode()
    count = limits.InMemory(print).of_address_max // size + 2
    with relays(tmp_path, "r") as (relay,), contextlib.ExitStack() as stack:
        callers = [stack.enter_context(socket.create_connection(("127.0.0.1", relay.port))) for _ in range(count)]
        for one in callers:
            one.sendall(head + bytes(size - 1))
        callers[0].settimeout(limits.BODY_S_MAX / 2)  # long before its own time is over
        with callers[0].makefile("rb") as answer:
            assert b"408" in answer.read().partition(b"\r\n")[0], "and then the connection ends"
        callers[-1].sendall(b"\0")
        callers[-1].settimeout(30)
        assert b"400" in callers[-1].recv(1_000).partition(b"\r\n")[0], "the newest one is whole, and was judged"


@pytest.mark.parametrize("behind_proxy", [False, True])
def test_only_a_proxy_names_senders_and_one_address_cannot_hold_all_connections(
    tmp_path: Path, behind_proxy: bool
) -> None:
    folder = tmp_path / "r"
    folder.mkdir(mode=0o700)
    lines = ["mails_per_s = 1", "connections_of_address = 5", f"behind_proxy = {str(behind_proxy).lower()}"]
    (folder / "relay.toml").write_text("\n".join(lines))
    with relays(tmp_path, "r") as (relay,):
        assert (429 in statuses(relay, 40)) is not behind_proxy
        callers = held(relay, 5)
        with socket.create_connection(("127.0.0.1", relay.port)) as one_more:
            assert is_closed(one_more) is not behind_proxy
        callers.pop().close()
        for one in (*callers, *held(relay, 1)):
            one.close()


def test_agents_that_logged_in_are_not_limited_by_their_address(tmp_path: Path) -> None:
    """A fleet may be behind one address, and all of it waits for mail."""
    folder = tmp_path / "r"
    folder.mkdir(mode=0o700)
    (folder / "relay.toml").write_text("connections_of_address = 3\nregistrations_an_hour = 20\n")

    async def story(relay: RelayProcess) -> None:
        channels = [RelayChannel(relay.at, Sodium()) for _ in range(8)]
        async with asyncio.TaskGroup() as group:
            for channel in channels:
                agent = RelayAgent(wit=Keys((channel.key,), 1))
                await channel.call("POST", f"/v1/log/{agent.id}", agent.records[0].line() + b"\n")
                login, _ = await channel.login(agent.certificate(), agent.key)
                group.create_task(channel.take(agent.id, login.token, after=0, wait_s=3))
        for channel in channels:
            await channel.close()
        strangers = held(relay, 3)
        with socket.create_connection(("127.0.0.1", relay.port)) as one_more:
            assert is_closed(one_more), "those of strangers are counted as before"
        for one in strangers:
            one.close()

    with relays(tmp_path, "r") as (relay,):
        asyncio.run(story(relay))


def test_an_agent_that_logged_in_has_few_connections_that_do_not_count_for_its_address() -> None:
    callers = Callers(most=2)
    for _ in range(AGENT_CONNECTIONS):
        assert callers.enter("10.0.0.1")
        assert callers.know("10.0.0.1", "hf1a")
    assert callers.enter("10.0.0.1")
    assert not callers.know("10.0.0.1", "hf1a")
    assert callers.enter("10.0.0.1")
    assert not callers.enter("10.0.0.1")


def test_requests_of_a_session_count_for_its_agent(relay: Relay) -> None:
    relay._buckets["mail"] = Buckets(Rate(burst=6, per_s=1e-6))

    async def story() -> None:
        channel = DirectChannel(relay)
        agent = await channel.registered()
        tokens = [await channel.entered(agent), await channel.entered(agent)]
        for _ in range(2):
            with contextlib.suppress(RelayBusy):
                await channel.call("GET", f"/v1/mailbox/{agent.id}/nonce")
        with pytest.raises(RelayBusy):
            await channel.take(agent.id, "of a stranger", after=0, wait_s=0)
        for _ in range(6):
            await channel.take(agent.id, tokens[1], after=0, wait_s=0)
        with pytest.raises(RelayBusy):
            await channel.take(agent.id, tokens[1], after=0, wait_s=0)

    asyncio.run(story())


def test_of_two_instances_of_one_incarnation_the_later_one_gets_the_mail_and_both_learn_of_it(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mail_calls, "ALIVE_S", 1e9)

    async def story() -> None:
        channel = DirectChannel(relay)
        agent = await channel.registered()
        keys = [KeyPair.new(ENTROPY) for _ in range(3)]

        async def enter(key: KeyPair) -> LoginAnswer:
            agent.key = key
            return (await channel.login(agent.certificate(), key))[0]

        async def other(token: str) -> str:
            return (await channel.take(agent.id, token, after=0, wait_s=0))[0].other

        first, second = await enter(keys[0]), await enter(keys[1])
        assert await other(second.token) == "", "a process that was started again is not two"
        with pytest.raises(ReplacedHere) as replaced:
            await channel.take(agent.id, first.token, after=0, wait_s=0)
        assert parse_certificate(replaced.value.proof).record.inst == keys[1].public
        assert parse_certificate((await other(second.token)).encode()).record.inst == keys[0].public
        with pytest.raises(ReplacedHere):  # it does not get the mail back while the other one lives
            await enter(keys[0])
        relay.mail._takers[agent.id].at -= 2e9
        again = await enter(keys[0])
        assert await other(again.token) == ""
        with pytest.raises(ReplacedHere):
            await channel.acknowledge(agent.id, second.token, Ack(secured=9))
        third = await enter(keys[2])
        assert await other(third.token) == ""

    asyncio.run(story())


def test_an_instance_that_waits_for_mail_is_answered_when_another_one_logs_in(relay: Relay) -> None:
    async def story() -> None:
        channel = DirectChannel(relay)
        agent = await channel.registered()
        token = await channel.entered(agent)
        waits = asyncio.create_task(channel.take(agent.id, token, after=0, wait_s=25))
        await asyncio.sleep(0.2)  # it waits by then; if not, it is refused all the same
        agent.key = KeyPair.new(ENTROPY)
        later = await channel.entered(agent)
        assert await asyncio.wait({waits}, timeout=15) == ({waits}, set()), "at once, not when the time is up"
        with pytest.raises(ReplacedHere):
            await waits
        page, _ = await channel.take(agent.id, later, after=0, wait_s=0)
        assert page.other == "", "an answer that was waited for is no sign of life"

    asyncio.run(story())


def test_the_largest_acknowledgement_of_a_client_is_taken_whole() -> None:
    """Reasons quote what strangers wrote. One that was too large was refused again and again, and no mail came."""
    most, entry = NUMBER_MAX, "f" * 64
    ack = Ack(
        rewind=most,
        received=((most, entry),) * RECEIVED_MAX,
        mark=most,
        refused=((most, entry, "\x01" * REASON_CHARS_MAX),) * REFUSED_MAX,
        secured=most,
        contacts=(RelayAgent().id,) * CONTACTS_MAX,
    )
    assert len(msgspec.json.encode(ack)) <= mail_calls.ACK_BYTES_MAX
