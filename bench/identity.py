"""What identity costs: signing, verifying a log of 1,000 records, unlocking by passphrase.

`python bench/identity.py [--records N] [--json]`. Times are of this process's CPU: other work on
the machine slows them a little, it does not add to them. Unlocking is measured by the clock as
well, since its lanes may run side by side; what a person waits is the larger one.

Bounds: a signature within 0.2 ms, the log within 0.5 s, an unlock between 0.1 s (or guessing is
cheap) and 1 s (or people choose short ones). With `--check` the exit code is 1 where one is missed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Callable

from holdfast.core.clock import SystemEntropy
from holdfast.identity.log import drafts
from holdfast.identity.log.log import accept, accept_line
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.records.encodings import key_bytes
from holdfast.identity.records.records import Keys, RotationReason
from holdfast.identity.records.secret_bytes import KeyPair, SecretBytes
from holdfast.identity.records.signed import Refusal
from holdfast.identity.vault.slots import open_slot, passphrase_key, seal_slot

PORT = Sodium()
BOUNDS = {"sign_ms": (0.0, 0.2), "verify_log_s": (0.0, 0.5), "unlock_s": (0.1, 1.0)}
ROUNDS = 2_000


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--records", type=int, default=1_000)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true", help="exit with 1 beyond the bounds")
    options = parser.parse_args()
    signer = _key("bench")
    message = b"holdfast/1/kel\0" + bytes(400)
    signature = signer.sign(message)
    public = key_bytes(signer.public)
    lines = _log(options.records)
    figures = {
        "sign_ms": _each_ms(lambda: signer.sign(message)),
        "verify_ms": _each_ms(lambda: PORT.verifies(public, message, signature)),
        "records": len(lines),
        "log_bytes": sum(map(len, lines)),
        "verify_log_s": min(_verified_s(lines) for _ in range(3)),
        **_unlocked(),
    }
    if options.json:
        print(json.dumps({name: round(value, 4) for name, value in figures.items()}))
    else:
        for name, value in figures.items():
            print(f"{name:>14}  {value:,.4f}" if isinstance(value, float) else f"{name:>14}  {value:,}")
    missed = [name for name, (low, high) in BOUNDS.items() if not low <= figures[name] <= high]
    if options.check and missed:
        print(f"beyond the bounds: {', '.join(missed)}", file=sys.stderr)
        return 1
    return 0


def _unlocked() -> dict[str, float]:
    """A slot of a vault, opened by its passphrase with the default work."""
    key = passphrase_key("correct horse battery staple")
    slot = seal_slot(key, b"payload", vault_id="bench", entropy=SystemEntropy())
    rounds: list[tuple[float, float]] = []
    for _ in range(3):
        clock, cpu = time.monotonic(), time.process_time()
        if open_slot(slot, key, vault_id="bench") != b"payload":
            raise SystemExit("the slot does not open")
        rounds.append((time.monotonic() - clock, time.process_time() - cpu))
    return {"unlock_s": min(one for one, _ in rounds), "unlock_cpu_s": min(one for _, one in rounds)}


def _log(records: int) -> list[bytes]:
    """An inception and rotations, as `kel.jsonl` has them."""
    op, nxt = _key("op 0"), _key("next 0")
    signed = drafts.inception(
        op=(op,),
        nxt=drafts.committed((nxt.public,)),
        rec=drafts.committed((_key("paper").public,)),
        wit=Keys(tuple(_key(f"w{i}").public for i in range(3)), 2),
        nonce="bench-bench-bench",
    )
    lines = [signed.line()]
    log = _taken(accept(None, signed, port=PORT))
    for number in range(1, records):
        op, by, nxt = _key(f"op {number}"), nxt, _key(f"next {number}")
        signed = drafts.rotation(
            log, by=(by,), op=(op,), nxt=drafts.committed((nxt.public,)), why=RotationReason.PLANNED
        )
        lines.append(signed.line())
        log = _taken(accept(log, signed, port=PORT))
    return lines


def _verified_s(lines: list[bytes]) -> float:
    began = time.process_time()
    log: KeyLog | None = None
    for line in lines:
        log = _taken(accept_line(log, line, port=PORT))
    return time.process_time() - began


def _each_ms(act: Callable[[], object]) -> float:
    began = time.process_time()
    for _ in range(ROUNDS):
        act()
    return (time.process_time() - began) / ROUNDS * 1000


def _key(name: str) -> KeyPair:
    return KeyPair(SecretBytes(hashlib.sha256(name.encode()).digest()))


def _taken(after: KeyLog | Refusal) -> KeyLog:
    if isinstance(after, Refusal):
        raise SystemExit(f"a record of the bench is refused: {after.message}")
    return after


if __name__ == "__main__":
    sys.exit(main())
