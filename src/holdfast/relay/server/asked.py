"""A request that was let in, and an answer that ends one early."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus

from starlette.requests import Request

from holdfast.errors import BadRecord
from holdfast.identity.records.encodings import AgentId, parse_agent_id
from holdfast.identity.records.signed import Reason
from holdfast.relay.server import limits


class Said(Exception):
    """An answer that ends a request early. `proof`: a line that shows why."""

    def __init__(self, status: int, code: str, message: str, wait_s: float = 0, *, proof: bytes = b"") -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.wait_s, self.proof = status, code, message, wait_s, proof


KNOW = "know"  # in the state of a connection: tells it which agent has logged in on it

Answer = tuple[int, bytes]
Handler = Callable[["Asked"], Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class Asked:
    """A request whose body is there and whose sender may ask."""

    request: Request
    body: bytes

    @property
    def id(self) -> AgentId:
        text = self.request.path_params["id"]
        try:
            if parse_agent_id(text) == text:
                return AgentId(text)
        except BadRecord:
            pass
        raise Said(HTTPStatus.BAD_REQUEST, Reason.MALFORMED, "the address does not end in the id of an agent")

    def know(self, agent: AgentId) -> None:
        """The request comes from this agent, which has logged in."""
        know = self.request.scope.get("state", {}).get(KNOW)
        if know is not None:
            know(agent)

    @property
    def sender(self) -> str:
        client = self.request.client
        return limits.block_of(client.host if client else "")
