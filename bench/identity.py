"""What identity costs: signing, verifying one signature, verifying a log of 1,000 records.

`python bench/identity.py [--records N] [--json]`. Times are of this process's CPU: other work on
the machine slows them a little, it does not add to them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Callable

from holdfast.identity import drafts
from holdfast.identity.ed25519 import SeedSigner, Sodium
from holdfast.identity.encodings import key_bytes
from holdfast.identity.log import accept, accept_line
from holdfast.identity.log_state import Log
from holdfast.identity.records import Keys, Why
from holdfast.identity.refusal import Refusal

PORT = Sodium()
ROUNDS = 2_000


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--records", type=int, default=1_000)
    parser.add_argument("--json", action="store_true")
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
    }
    if options.json:
        print(json.dumps({name: round(value, 4) for name, value in figures.items()}))
    else:
        for name, value in figures.items():
            print(
                f"{name:>14}  {value:,.4f}"
                if isinstance(value, float)
                else f"{name:>14}  {value:,}"
            )
    return 0


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
            log, by=(by,), op=(op,), nxt=drafts.committed((nxt.public,)), why=Why.PLANNED
        )
        lines.append(signed.line())
        log = _taken(accept(log, signed, port=PORT))
    return lines


def _verified_s(lines: list[bytes]) -> float:
    began = time.process_time()
    log: Log | None = None
    for line in lines:
        log = _taken(accept_line(log, line, port=PORT))
    return time.process_time() - began


def _each_ms(act: Callable[[], object]) -> float:
    began = time.process_time()
    for _ in range(ROUNDS):
        act()
    return (time.process_time() - began) / ROUNDS * 1000


def _key(name: str) -> SeedSigner:
    return SeedSigner(hashlib.sha256(name.encode()).digest())


def _taken(after: Log | Refusal) -> Log:
    if isinstance(after, Refusal):
        raise SystemExit(f"a record of the bench is refused: {after.message}")
    return after


if __name__ == "__main__":
    sys.exit(main())
