"""A relay in this process: requests go to its app without a socket, answers are checked as those of any relay."""

from __future__ import annotations

from collections.abc import Callable, Generator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h11

from holdfast.host.log import Log
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.records.records import Keys
from holdfast.identity.records.secret_bytes import KeyPair
from holdfast.layout.witness_address import WitnessRelay
from holdfast.relay.client.channel import RelayChannel
from holdfast.relay.server.app import Relay
from holdfast.relay.server.settings import RelaySettings
from holdfast.relay.server.store import Store
from holdfast_proofs.support.relay_agents import ENTROPY, RelayAgent

PORT = Sodium()


class DirectChannel(RelayChannel):
    """One caller, at one network address."""

    def __init__(self, relay: Relay, client: str = "10.0.0.1") -> None:
        super().__init__(WitnessRelay("http://127.0.0.1:1", relay.signer.public), PORT)
        self.relay, self.client = relay, client
        self.app = relay.app()

    async def _exchange(self, request: h11.Request, body: bytes, first_byte: Callable[[], None]) -> tuple[int, bytes]:
        path, _, query = request.target.decode().partition("?")
        scope = {
            "type": "http",
            "method": request.method.decode(),
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(bytes(name), bytes(value)) for name, value in request.headers],
            "client": (self.client, 1),
            "http_version": "1.1",
            "scheme": "http",
            "server": ("127.0.0.1", 1),
            "root_path": "",
        }
        sent: list[MutableMapping[str, Any]] = []  # Any: as ASGI has it

        async def receive() -> MutableMapping[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: MutableMapping[str, Any]) -> None:
            sent.append(message)

        await self.app(scope, receive, send)
        return sent[0]["status"], b"".join(one.get("body", b"") for one in sent[1:])

    async def registered(self) -> RelayAgent:
        """A new agent that the relay knows."""
        agent = RelayAgent(wit=Keys((self.relay.signer.public,), 1))
        await self.call("POST", f"/v1/log/{agent.id}", agent.records[0].line() + b"\n")
        return agent

    async def entered(self, agent: RelayAgent) -> str:
        """The token of a new session."""
        login, _ = await self.login(agent.certificate(), agent.key)
        return login.token


@contextmanager
def direct_relay(folder: Path, settings: RelaySettings | None = None) -> Generator[Relay]:
    store = Store(folder)
    try:
        chosen = settings or RelaySettings(registration="open", registrations_an_hour=100)
        yield Relay(store, KeyPair.new(ENTROPY), chosen, PORT, Log())
    finally:
        store.close()
