"""A model as tasks and agents name it: what it is called, where it is asked, what it costs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from holdfast.errors import BadSettings
from holdfast.runtime.models.endpoint import Endpoint
from holdfast.runtime.models.endpoints import Endpoints
from holdfast.runtime.models.port import ChatModel
from holdfast.runtime.models.price import Price
from holdfast.runtime.models.request import Object, check_model_name, check_settings

ATTEMPTS = 200  # with a minute between two of them: about three hours of a provider's outage
TIME_S = 900.0
TIME_S_MAX = 86_400.0


class Model:
    """A chat model.

    Args:
        name: as the provider has it; it stands in every request.
        at: its endpoints, in order; or any `ChatModel`.
        price: where it is given, each step records what it cost.
        settings: for every request; a call's own go before them.
        time_s: seconds for one sending, over all endpoints.
        attempts: how often a request is tried while no endpoint replies, before the step is
            parked. A try goes to each endpoint at most once; one that rests after a failure is
            passed over, and a try that finds all of them resting counts too.
    """

    def __init__(
        self,
        name: str,
        at: Endpoint | Sequence[Endpoint] | ChatModel,
        *,
        price: Price | None = None,
        settings: Mapping[str, object] | None = None,
        region: str = "",
        wire_names: Mapping[str, str] | None = None,
        allow_state: Iterable[str] = (),
        time_s: float = TIME_S,
        attempts: int = ATTEMPTS,
    ) -> None:
        check_model_name(name)
        if not 0 < time_s <= TIME_S_MAX or attempts < 1:
            raise BadSettings(f"model {name}: time_s is above 0 and at most {TIME_S_MAX:g}, attempts above 0")
        self.name = name
        self.price = price
        self.settings: Object = check_settings(dict(settings or {}))
        self.time_s = time_s
        self.attempts = attempts
        if isinstance(at, Endpoint):
            at = (at,)
        if isinstance(at, Sequence):
            self.chat: ChatModel = Endpoints(
                cast("Sequence[Endpoint]", at), region=region, wire_names=wire_names, allow_state=allow_state
            )
        elif region or wire_names or tuple(allow_state):
            raise BadSettings(f"model {name}: region, wire_names and allow_state are for endpoints")
        else:
            self.chat = at

    @property
    def places(self) -> list[list[str]]:
        """Where it is asked, without keys: name, address and wire form of each endpoint."""
        if not isinstance(self.chat, Endpoints):
            return []
        return [[one.name, one.url, one.wire] for one in self.chat.endpoints]

    def __repr__(self) -> str:
        return f"Model({self.name!r})"
