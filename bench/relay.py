"""What one relay carries: verified and synced submits of 1 KiB a second, and submit + deliver + acknowledge a second.

`python bench/relay.py [--mails N] [--batch N] [--json] [--check]`. The relay is a process of its own with its store on
the disk of --folder; envelopes are sealed beforehand, so the figures are of the relay and its asker, not of HPKE. Relay
and load share the machine. Goals: 2,000 submits/s; 1,000/s over the whole path; a stalled reader with all mails waiting
costs the relay at most 50 MiB. With `--check` the exit code is 1 where one is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from holdfast.core.clock import SystemEntropy
from holdfast.core.mail import MailKind
from holdfast.identity.log import drafts
from holdfast.identity.log.log import accept
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.records.encodings import AgentId, digest_of
from holdfast.identity.records.records import Keys
from holdfast.identity.records.secret_bytes import KeyPair
from holdfast.identity.records.signed import Family, Signed, sealed
from holdfast.identity.statements.certificate import Certificate, Role
from holdfast.identity.statements.statements import EncryptionKey
from holdfast.relay.client.channel import RelayChannel
from holdfast.relay.client.profile import bring_log
from holdfast.relay.protocol.calls import ACK_MAX, Ack
from holdfast.relay.protocol.envelope import Inner, seal_envelope
from holdfast_proofs.support.relays import RelayProcess, relays

PORT = Sodium()
ENTROPY = SystemEntropy()
SETTINGS = (
    "registrations_an_hour = 10000\nmails_per_s = 1000000\nmails_of_agent_per_s = 1000000\n"
    "mailbox_mails = 1000000\nmailbox_mib = 4096\n"
)
GOALS = {"submits_per_s": 2_000.0, "whole_path_per_s": 1_000.0}
GROWTH_MIB_MAX = 50.0


@dataclass
class Agent:
    log: KeyLog
    key: KeyPair
    crt: Signed[Certificate]
    mail_key: EncryptionKey

    @property
    def id(self) -> AgentId:
        return self.log.id


def make_agent() -> Agent:
    op, nxt, paper, witness, key = (KeyPair.new(ENTROPY) for _ in range(5))
    signed = drafts.inception(
        op=(op,),
        nxt=drafts.committed((nxt.public,)),
        rec=drafts.committed((paper.public,)),
        wit=Keys((witness.public,), 1),
        nonce="bench-bench-bench",
    )
    log = accept(None, signed, port=PORT)
    assert isinstance(log, KeyLog)
    now = int(time.time())
    crt = Certificate(
        id=log.id, g=0, s=0, inst=key.public, role=Role.PRIMARY, e=1, iat=now, exp=now + 3_600, host=digest_of(b"bench")
    )
    public = X25519PrivateKey.generate().public_key().public_bytes_raw()
    return Agent(log, key, sealed(crt, Family.CERT, (op,)), EncryptionKey(kid="k", key=public.hex(), exp=now + 3_600))


def envelopes(sender: Agent, to: Agent, count: int, first: int = 0) -> list[bytes]:
    return [
        seal_envelope(
            Inner(key=(first + n + 1).to_bytes(16, "big"), body=b'"' + b"x" * 700 + b'"'),
            kind=MailKind.MESSAGE,
            to=to.id,
            ttl_s=3_600,
            key=to.mail_key,
            crt=sender.crt,
            signer=sender.key,
        )
        for n in range(count)
    ]


async def submit_all(relay: RelayProcess, to: AgentId, mails: list[bytes], *, batch: int, lanes: int) -> list[float]:
    """The time of each request."""
    waiting = [mails[n : n + batch] for n in range(0, len(mails), batch)]
    times: list[float] = []

    async def lane() -> None:
        channel = RelayChannel(relay.at, PORT)
        while waiting:
            part, began = waiting.pop(), time.perf_counter()
            answer, _ = await channel.submit(to, part)
            assert all(one.seq for one in answer.items), answer.items[0]
            times.append(time.perf_counter() - began)
        await channel.close()

    await asyncio.gather(*(lane() for _ in range(lanes)))
    return times


async def take_all(relay: RelayProcess, agent: Agent, count: int) -> int:
    channel = RelayChannel(relay.at, PORT)
    login, _ = await channel.login(agent.crt, agent.key)
    after, got = 0, 0
    while got < count:
        page, _ = await channel.take(agent.id, login.token, after=after, wait_s=5)
        seqs = tuple(one.seq for one in page.items if one.envelope)
        after = page.items[-1].seq if page.items else after
        for n in range(0, len(seqs), ACK_MAX):
            await channel.acknowledge(agent.id, login.token, Ack(received=seqs[n : n + ACK_MAX], mark=1))
        got += len(seqs)
    await channel.close()
    return got


async def stall(relay: RelayProcess, agent: Agent) -> None:
    """Ask for mail as often as a session may, and read nothing."""
    channel = RelayChannel(relay.at, PORT)
    login, _ = await channel.login(agent.crt, agent.key)
    host, port = "127.0.0.1", relay.port
    head = f"GET /v1/mailbox/{agent.id}?after=0&wait=0 HTTP/1.1\r\nhost: x\r\nholdfast-session: {login.token}\r\n\r\n"
    writers: list[asyncio.StreamWriter] = []
    for _ in range(20):
        reader, writer = await asyncio.open_connection(host, port, limit=1)
        reader._transport.pause_reading()  # pyright: ignore
        writer.write(head.encode() * 50)
        writers.append(writer)
    await asyncio.sleep(3)
    for writer in writers:
        writer.transport.abort()
    await channel.close()


def memory_mib(relay: RelayProcess) -> float:
    assert relay.process is not None
    text = Path(f"/proc/{relay.process.pid}/status").read_text()
    return int(text.partition("VmRSS:")[2].split()[0]) / 1024


async def measure(relay: RelayProcess, *, mails: int, batch: int, lanes: int) -> dict[str, float]:
    sender, to, other = (make_agent() for _ in range(3))
    for one in (sender, to, other):
        await bring_log(relay.link, one.log)
    channel = RelayChannel(relay.at, PORT)
    login, _ = await channel.login(to.crt, to.key)
    await channel.acknowledge(to.id, login.token, Ack(contacts=(sender.id,)))
    login, _ = await channel.login(other.crt, other.key)
    await channel.acknowledge(other.id, login.token, Ack(contacts=(sender.id,)))
    await channel.close()
    await submit_all(relay, to.id, envelopes(sender, to, 64, first=10**9), batch=batch, lanes=1)

    sealed_mails = envelopes(sender, to, mails)
    began = time.perf_counter()
    times = sorted(await submit_all(relay, to.id, sealed_mails, batch=batch, lanes=lanes))
    submit_s = time.perf_counter() - began

    single = envelopes(sender, to, 500, first=10**8)
    began = time.perf_counter()
    await submit_all(relay, to.id, single, batch=1, lanes=lanes)
    single_s = time.perf_counter() - began

    before = memory_mib(relay)
    await stall(relay, to)
    growth = memory_mib(relay) - before

    again = envelopes(sender, other, mails)
    began = time.perf_counter()
    await asyncio.gather(submit_all(relay, other.id, again, batch=batch, lanes=lanes), take_all(relay, other, mails))
    whole_s = time.perf_counter() - began
    return {
        "mails": mails,
        "batch": batch,
        "submits_per_s": mails / submit_s,
        "submit_p99_ms": times[int(len(times) * 0.99)] * 1_000,
        "single_submits_per_s": len(single) / single_s,
        "whole_path_per_s": mails / whole_s,
        "stalled_reader_mib": growth,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mails", type=int, default=10_000)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--lanes", type=int, default=4)
    parser.add_argument("--folder", type=Path, help="where the relay's store is; default: a temporary folder")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true", help="exit with 1 beyond the bounds")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as root:
        folder = Path(root) / "relay"
        folder.mkdir(mode=0o700)
        (folder / "relay.toml").write_text(SETTINGS)
        with relays(Path(root), "relay") as (relay,):
            figures = asyncio.run(measure(relay, mails=options.mails, batch=options.batch, lanes=options.lanes))
    if options.json:
        print(json.dumps(figures, indent=1))
    else:
        for name, value in figures.items():
            print(f"{name:<22} {value:>10,.1f}" + (f"  (goal {GOALS[name]:,.0f})" if name in GOALS else ""))
    missed = [name for name, goal in GOALS.items() if figures[name] < goal]
    missed += ["stalled_reader_mib"] if figures["stalled_reader_mib"] > GROWTH_MIB_MAX else []
    return 1 if options.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
