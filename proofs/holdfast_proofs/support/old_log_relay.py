"""`python -m holdfast_proofs.support.old_log_relay ...`: `holdfast relay serve ...` that shows every key log as it was
when it was first asked for. It takes new records, and signs for them."""

from __future__ import annotations

import sys

from holdfast.cli.main import main
from holdfast.relay.server.app import Relay
from holdfast.relay.server.asked import Answer, Asked

_fetch = Relay._fetch
_shown: dict[str, Answer] = {}


async def fetch(self: Relay, asked: Asked) -> Answer:
    if asked.id not in _shown:
        _shown[asked.id] = await _fetch(self, asked)
    return _shown[asked.id]


if __name__ == "__main__":
    Relay._fetch = fetch
    sys.exit(main(["relay", "serve", *sys.argv[1:]]))
