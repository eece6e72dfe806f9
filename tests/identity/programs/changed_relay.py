"""`holdfast relay serve` with one thing changed: the first argument says what."""

from __future__ import annotations

import os
import signal
import sys

from holdfast.cli.main import main
from holdfast.identity.witness.witness_folder import WitnessService
from holdfast.relay.server import limits, serve

_submit = WitnessService.submit


async def dies(self: WitnessService, line: bytes, receipts: tuple[bytes, ...] = ()) -> bytes:
    """Committed and synced; killed before the answer."""
    await _submit(self, line, receipts)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


if __name__ == "__main__":
    match sys.argv[1]:
        case "dies":
            WitnessService.submit = dies  # pyright: ignore[reportAttributeAccessIssue]
        case "hasty":
            serve.HEADERS_S = limits.BODY_S_MAX = 0.5
        case other:
            raise SystemExit(other)
    sys.exit(main(["relay", "serve", *sys.argv[2:]]))
