"""What follows from the failures of one call: pure decisions.

A request goes to the endpoints in order, those of the caller's region first, each at most once. The
next one is tried after every error that is the endpoint's own; an error about the request ends the
call. When none is left, the caller gets the error that says most about trying again: retryable if
any endpoint may do better later, unknown if a reply came and was lost, else the first refusal.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from holdfast.errors import ModelOverloaded, ModelRateLimited, ModelUnavailable, ReplyGarbled
from holdfast.runtime.models.endpoint import Endpoint
from holdfast.runtime.models.reply import Failure
from holdfast.runtime.models.troubles import ModelError

RESTING = "resting"


def in_order(endpoints: Iterable[Endpoint], *, region: str) -> tuple[Endpoint, ...]:
    """As given, but the region's own first."""
    return tuple(sorted(endpoints, key=lambda one: bool(region) and one.region != region))


def as_failure(endpoint: Endpoint, error: ModelError, *, text_chars: int) -> Failure:
    return Failure(
        endpoint=endpoint.name,
        code=error.code,
        message=error.message,
        status=None if isinstance(error, ReplyGarbled) else error.status,
        retry_after_s=error.retry_after_s if isinstance(error, ModelUnavailable) else None,
        text_chars=text_chars,
    )


def as_resting(endpoint: Endpoint, *, wait_s: float) -> Failure:
    return Failure(
        endpoint=endpoint.name,
        code=RESTING,
        message=f"endpoint {endpoint.name}: rests after failures",
        retry_after_s=wait_s,
    )


def verdict(failures: Sequence[Failure], errors: Mapping[str, ModelError]) -> ModelError:
    """The error of the whole call. `errors` are those of the endpoints that were asked."""
    waits = [one.retry_after_s for one in failures if one.retry_after_s is not None]
    retryable = [one for one in errors.values() if isinstance(one, ModelUnavailable)]
    resting = any(one.code == RESTING for one in failures)
    if retryable or resting:
        kind = _common_kind(retryable, resting=resting)
        found: ModelError = kind(_told(failures), retry_after_s=min(waits, default=None))
    else:
        garbled = [one for one in errors.values() if isinstance(one, ReplyGarbled)]
        found = garbled[0] if garbled else next(iter(errors.values()))
    return with_failures(found, failures)


def with_failures(error: ModelError, failures: Sequence[Failure]) -> ModelError:
    error.failures = tuple(msgspec.to_builtins(one) for one in failures)
    return error


def affinity_of(endpoint: Endpoint, *, session: str, kept: Mapping[str, str]) -> dict[str, str]:
    """The headers by which the endpoint knows the conversation again.

    A digest of session and endpoint: no provider learns our names, nor the other's.
    """
    headers: dict[str, str] = {}
    if endpoint.affinity_header and (session or "affinity" in kept):
        made = hashlib.sha256(f"holdfast/affinity/1\0{endpoint.name}\0{session}".encode())
        headers[endpoint.affinity_header] = kept.get("affinity") or made.hexdigest()[:32]
    if endpoint.cache_header and "cache" in kept:
        headers[endpoint.cache_header] = kept["cache"]
    return headers


def _common_kind(errors: Sequence[ModelUnavailable], *, resting: bool) -> type[ModelUnavailable]:
    for kind in (ModelRateLimited, ModelOverloaded):
        if errors and not resting and all(isinstance(one, kind) for one in errors):
            return kind
    return ModelUnavailable


def _told(failures: Sequence[Failure]) -> str:
    return "no endpoint replied: " + "; ".join(one.message for one in failures)
