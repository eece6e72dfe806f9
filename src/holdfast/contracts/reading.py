"""What every contract does with an answer: raise what it proves, look through lists, by name.

A far end's own habits are read by the contract's own pure function; what is left follows the
common table (core/answers.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any, Protocol, cast

from holdfast.core import answers, values
from holdfast.core.effect import Effect
from holdfast.core.secret_handles import find_whole, is_name
from holdfast.errors import BadReference, Busy, KeyReused, Misuse, Refused, StepNotFound
from holdfast.runtime.http.message import AnswerUnknown, Response
from holdfast.runtime.tool.tool import Absent, FindAnswer, Found, Many, Tool, tool

# Between our clock and the far end's, and the time from our record to its own stamp: a list is
# read this much further back than the effect can be old.
SLACK_S = 300.0


def secret_name(handle: str, *, what: str) -> str:
    """The name in `secret://NAME`. Raises Misuse: a value itself has no place in code."""
    name = find_whole(handle)
    if name is None or not is_name(name):
        raise Misuse(
            f"{what}: pass a handle such as secret://billing, not the value itself",
            hint="`holdfast secret set NAME` stores the value",
        )
    return name


def base_url(url: str) -> str:
    """Without a slash at its end. Raises Misuse where it is no address of a service."""
    if not url.startswith(("https://", "http://")):
        raise Misuse(f"{url!r}: a URL begins with https:// (or http:// on your own machine)")
    return url.rstrip("/")


class Maker:
    """Makes the tools of one contract: NAME_VERB, with the options that all of them share."""

    def __init__(self, name: str, **shared: Any) -> None:  # Any: options of `tool`
        self._name = name
        self._shared = shared

    def __call__(
        self, function: Any, verb: str, effect: Effect, *, find: Any = None, **own: Any
    ) -> Tool[..., Any]:  # Any: functions of every shape
        made: Tool[..., Any] = tool(effect=effect, name=f"{self._name}_{verb}", **self._shared, **own)(function)
        if find is not None:
            made.find(find)
        return made


def conclude(answer: answers.Meaning | Refused, response: Response, *, where: str) -> None:
    """Return where it took effect; else raise what the answer proves."""
    proof = response.proof()
    match answer:
        case answers.MeansDone():
            return
        case Refused():
            raise answer
        case answers.MeansRefused():
            raise Refused(proof)
        case answers.MeansBusy(retry_after_s=wait_s):
            raise Busy(wait_s)
        case answers.MeansKeyReused():
            raise KeyReused(proof)
        case answers.MeansUnknown(reason=reason):
            raise AnswerUnknown(f"{where}: {reason}", status=response.status, evidence=proof)


def limited(response: Response, *, default_s: float) -> Refused:
    """The refusal of a far end that limits its rate and did nothing."""
    wait_s = answers.retry_after_s(response.headers)
    return Refused(response.proof(), retry_after_s=default_s if wait_s is None else wait_s)


def until_reset_s(response: Response, *, default_s: float) -> float:
    """How long until the limit of rate ends, by the far end's own clock."""
    now, reset = answered_at(response), response.headers.get("x-ratelimit-reset", "")
    if now is None or not reset.isdecimal():
        return default_s
    return min(max(float(reset) - now, 1.0), answers.RETRY_AFTER_MAX_S)


def json_object(response: Response) -> dict[str, Any]:  # Any: the far end's JSON
    """The body where it is an object; else nothing is known of it."""
    try:
        return as_object(values.decode(response.body))
    except (ValueError, RecursionError):
        return {}


def as_object(value: object) -> dict[str, Any]:  # Any: the far end's JSON
    """The value where it is an object; else an empty one."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def json_objects(value: object) -> list[dict[str, Any]]:  # Any: the far end's JSON
    """The objects of a list that came as JSON. Raises ValueError where it is something else: a page of a proxy is no
    empty list, and a lookup that raises cannot say."""
    if not isinstance(value, list):
        raise ValueError("the far end's answer contains no list")
    items = cast("list[object]", value)
    if not all(isinstance(one, dict) for one in items):
        raise ValueError("the far end's list contains an item that is not an object")
    return cast("list[dict[str, Any]]", items)


def answered_at(response: Response) -> float | None:
    """The far end's own time of the answer, in seconds since 1970."""
    try:
        moment = parsedate_to_datetime(response.headers.get("date", ""))
    except (ValueError, IndexError, TypeError, OverflowError):
        return None
    return moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()


def oldest(response: Response, sent_ago_s: float | None) -> float | None:
    """Before this time, on the far end's clock, the effect cannot have been made."""
    now = answered_at(response)
    return None if now is None or sent_ago_s is None else now - sent_ago_s - SLACK_S


def counted(results: list[Found]) -> FindAnswer:
    """One is it, none is none, more are a person's matter."""
    if not results:
        return Absent()
    return results[0] if len(results) == 1 else Many([one.result for one in results])


def picked(source: Mapping[str, Any], *names: str) -> dict[str, Any]:  # Any: the far end's JSON
    """These fields, where they are there: what is not needed is not kept."""
    return {name: source[name] for name in names if source.get(name) is not None}


# How a webhook's word reaches the journal: a checked event becomes evidence, nothing else does.


class _Secrets(Protocol):
    def get_value(self, name: str) -> str: ...


class TakesEvidence(Protocol):
    """What an open journal (`holdfast.open`) offers to a webhook."""

    @property
    def secrets(self) -> _Secrets: ...

    async def evidence(self, *, effect_key: str = "", result: Any = None, source: str = "webhook") -> None: ...


async def tell(hf: TakesEvidence, *, effect_key: str, result: object, source: str) -> bool:
    """Hand on that it happened. False where the key belongs to no step of this journal."""
    try:
        await hf.evidence(effect_key=effect_key, result=result, source=source)
    except (StepNotFound, BadReference):
        return False
    return True
