"""The counter and hash chain of one instance: two copies of one key collide where it shows.

Each message of an instance carries a counter and the digest of the message before it. A snapshot
resumed twice sends two different messages with one counter, or one that does not follow what the
other sent: that is a fork, and the instance is frozen. A frozen instance stays so; only a newer
rotation or recovery, and with it another certificate, lets an instance act again.

A message that comes twice is no fork, nor is one that jumps ahead (the ones between were lost on
the way to this observer), nor an old one that is repeated by somebody else.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.identity.records.encodings import Digest
from holdfast.identity.records.refusal import Reason, Refusal

WINDOW = 64  # messages whose digests are kept: repeats and late copies fall into it


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """What one observer saw of one instance: the newest counters with their digests."""

    seen: tuple[tuple[int, Digest], ...]
    frozen: bool = False

    @property
    def counter(self) -> int:
        return self.seen[-1][0] if self.seen else 0


def start(certificate: Digest) -> Chain:
    """The chain of an instance that has said nothing: it follows from its certificate."""
    return Chain(seen=((0, certificate),))


def follow(chain: Chain, *, counter: int, before: Digest, digest: Digest) -> Chain | Refusal:
    """The chain with the message; a frozen chain where it proves a second copy of the key."""
    if chain.frozen:
        return Refusal(Reason.FROZEN, "two copies of this instance's key were seen")
    known = dict(chain.seen)
    if counter in known:
        return chain if known[counter] == digest else frozen(chain)
    if counter < chain.counter:
        return Refusal(Reason.OLD_VERSION, f"counter {counter} after {chain.counter}")
    if known.get(counter - 1, before) != before:
        return frozen(chain)
    return Chain(seen=(*chain.seen, (counter, digest))[-WINDOW:])


def frozen(chain: Chain) -> Chain:
    return Chain(seen=chain.seen, frozen=True)
