"""What one relay carries: verified and synced submits of 1 KiB a second, and submit + deliver + acknowledge a second.

`python bench/relay.py [--mails N] [--batch N] [--peers FOLDER] [--json] [--check]`. The relay is a process of its own
with its store on the disk of --folder; envelopes are sealed beforehand, so the figures are of the relay and its asker,
not of HPKE. Relay and load share the machine. At the end the relay is killed under load, and what it had confirmed is
looked for. Goals: 2,000 submits/s; 1,000/s over the whole path; nothing lost. With `--check` the exit code is 1 where
one is missed. What a reader that does not read costs is measured by `make relay-idle`.

With `--peers` nostr-relay (Python, SQLite) has the same load in the same run, with the settings that it comes with. It
checks a signature for each event, as ours does. It does not sync its commits, and a reader confirms nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from holdfast.core.mail import MailKind
from holdfast.identity.records.encodings import AgentId
from holdfast.relay.client.channel import RelayChannel
from holdfast.relay.client.profile import bring_log
from holdfast.relay.protocol.calls import ACK_MAX, Ack
from holdfast.relay.protocol.envelope import Inner, seal_envelope
from holdfast_proofs.support.relay_agents import PORT, RelayAgent
from holdfast_proofs.support.relays import RelayProcess, relays

SETTINGS = (
    "registrations_an_hour = 10000\nmails_per_s = 1000000\nmails_of_agent_per_s = 1000000\n"
    "mailbox_mails = 1000000\nmailbox_mib = 4096\n"
)
GOALS = {"submits_per_s": 2_000.0, "whole_path_per_s": 1_000.0}
KILLED_AFTER = 0.4  # of the mails
PEER = Path(__file__).parent / "peers" / "nostr_relay_mail.py"


class Agent(RelayAgent):
    def __post_init__(self) -> None:
        super().__post_init__()
        self.crt = self.certificate(lasts_s=3_600)


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


async def submit_all(
    relay: RelayProcess, to: AgentId, mails: list[bytes], *, batch: int, lanes: int, ids: list[str] | None = None
) -> list[float]:
    """The time of each request; `ids` gets those that the relay confirmed."""
    waiting = [mails[n : n + batch] for n in range(0, len(mails), batch)]
    times: list[float] = []

    async def lane() -> None:
        channel = RelayChannel(relay.at, PORT)
        while waiting:
            part, began = waiting.pop(), time.perf_counter()
            answer, _ = await channel.submit(to, part)
            assert all(one.seq for one in answer.items), answer.items[0]
            times.append(time.perf_counter() - began)
            if ids is not None:
                ids.extend(one.id for one in answer.items)
        await channel.close()

    await asyncio.gather(*(lane() for _ in range(lanes)))
    return times


async def kill_under_load(
    relay: RelayProcess, sender: Agent, to: Agent, *, mails: int, batch: int, lanes: int
) -> tuple[int, int]:
    """How many the relay had confirmed when it was killed, and how many of these it does not have afterwards."""
    stored: list[str] = []
    sealed_mails = envelopes(sender, to, mails, first=10**7)
    load = asyncio.create_task(submit_all(relay, to.id, sealed_mails, batch=batch, lanes=lanes, ids=stored))
    while len(stored) < KILLED_AFTER * mails and not load.done():  # noqa: ASYNC110 - another task fills it
        await asyncio.sleep(0.001)
    relay.kill()
    await asyncio.gather(load, return_exceptions=True)
    await asyncio.to_thread(relay.start)
    channel = RelayChannel(relay.at, PORT)
    login, _ = await channel.login(to.crt, to.key)
    found: set[str] = set()
    after = 0
    while True:
        page, _ = await channel.take(to.id, login.token, after=after, wait_s=0)
        if not page.items:
            break
        found |= {one.id.hex() for one in page.items if one.envelope}
        after = page.items[-1].seq
    await channel.close()
    return len(stored), len(set(stored) - found)


def measure_peer(python: Path, folder: Path, *, mails: int, batch: int, lanes: int) -> dict[str, float]:
    folder.mkdir(mode=0o700)
    words = [str(python), str(PEER), str(folder), str(mails), str(batch), str(lanes)]
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


async def take_all(relay: RelayProcess, agent: Agent, count: int) -> int:
    channel = RelayChannel(relay.at, PORT)
    login, _ = await channel.login(agent.crt, agent.key)
    after, got = 0, 0
    while got < count:
        page, _ = await channel.take(agent.id, login.token, after=after, wait_s=5)
        seqs = tuple((one.seq, one.id.hex()) for one in page.items if one.envelope)
        after = page.items[-1].seq if page.items else after
        for n in range(0, len(seqs), ACK_MAX):
            await channel.acknowledge(agent.id, login.token, Ack(received=seqs[n : n + ACK_MAX], mark=1))
        got += len(seqs)
    await channel.close()
    return got


async def measure(relay: RelayProcess, *, mails: int, batch: int, lanes: int) -> dict[str, float]:
    sender, to, other, last = (Agent() for _ in range(4))
    for one in (sender, to, other, last):
        await bring_log(relay.link, one.log)
    channel = RelayChannel(relay.at, PORT)
    for one in (to, other, last):
        login, _ = await channel.login(one.crt, one.key)
        await channel.acknowledge(one.id, login.token, Ack(contacts=(sender.id,)))
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

    again = envelopes(sender, other, mails)
    began = time.perf_counter()
    await asyncio.gather(submit_all(relay, other.id, again, batch=batch, lanes=lanes), take_all(relay, other, mails))
    whole_s = time.perf_counter() - began
    confirmed, lost = await kill_under_load(relay, sender, last, mails=mails, batch=batch, lanes=lanes)
    return {
        "mails": mails,
        "batch": batch,
        "submits_per_s": mails / submit_s,
        "submit_p99_ms": times[int(len(times) * 0.99)] * 1_000,
        "single_submits_per_s": len(single) / single_s,
        "whole_path_per_s": mails / whole_s,
        "confirmed_before_kill": confirmed,
        "lost_by_kill": lost,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mails", type=int, default=10_000)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--lanes", type=int, default=4)
    parser.add_argument("--folder", type=Path, help="where the relay's store is; default: a temporary folder")
    parser.add_argument("--peers", type=Path, help="a venv with nostr-relay: measure it too (make bench-relay)")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true", help="exit with 1 beyond the bounds")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as root:
        folder = Path(root) / "relay"
        folder.mkdir(mode=0o700)
        (folder / "relay.toml").write_text(SETTINGS)
        with relays(Path(root), "relay") as (relay,):
            figures = asyncio.run(measure(relay, mails=options.mails, batch=options.batch, lanes=options.lanes))
        peer = dict[str, float]()
        if options.peers:
            load = {"mails": options.mails, "batch": options.batch, "lanes": options.lanes}
            peer = measure_peer(options.peers.absolute() / "bin" / "python", Path(root) / "nostr", **load)
    if options.json:
        print(json.dumps({**figures, **({"nostr_relay": peer} if peer else {})}, indent=1))
    else:
        for name, value in figures.items():
            beside = f"  nostr-relay {peer[name]:>10,.1f}" if name in peer else ""
            print(f"{name:<22} {value:>10,.1f}{beside}" + (f"  (goal {GOALS[name]:,.0f})" if name in GOALS else ""))
    missed = [name for name, goal in GOALS.items() if figures[name] < goal]
    return 1 if figures["lost_by_kill"] or (options.check and missed) else 0


if __name__ == "__main__":
    sys.exit(main())
