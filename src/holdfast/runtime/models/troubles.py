"""What a provider's error means: may the request be sent again, and to whom?

    429                                   rate limited; `retry_after_s` where it is told
    429, 402, 400 about credit or spend   quota spent: waiting does not help
    503, 529, overloaded_error            overloaded
    408, 409, 425, 5xx                    unavailable
    401, 403                              key refused
    404                                   no such model (or the URL leads elsewhere)
    413, 400 about the context            context too long
    every other 3xx and 4xx               rejected

Codes and types are the providers' own words for machines and come first. Two things are told only
in words for people: Anthropic's 400 about a long prompt or an empty account, and the context errors
of many compatible servers. Those words are looked for here and nowhere else.

Errors that are about the endpoint (its key, its quota, its models, its load) leave the next
endpoint a chance; errors about the request end the call.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import cast

import msgspec

from holdfast.core import answers
from holdfast.errors import (
    ContextTooLong,
    HoldfastError,
    ModelKeyRefused,
    ModelNotFound,
    ModelOverloaded,
    ModelQuotaSpent,
    ModelRateLimited,
    ModelRejected,
    ModelUnavailable,
    ReplyGarbled,
)
from holdfast.runtime.models.request import Object

SHOWN_CHARS_MAX = 300
ModelError = ModelUnavailable | ModelRejected | ReplyGarbled

_BY_WORD = {  # a provider's `code` or `type`
    "rate_limit_error": ModelRateLimited,
    "rate_limit_exceeded": ModelRateLimited,
    "overloaded_error": ModelOverloaded,
    "server_error": ModelUnavailable,
    "api_error": ModelUnavailable,
    "timeout_error": ModelUnavailable,
    "insufficient_quota": ModelQuotaSpent,
    "billing_error": ModelQuotaSpent,
    "billing_hard_limit_reached": ModelQuotaSpent,
    "enforced_spend_limit_reached": ModelQuotaSpent,
    "context_length_exceeded": ContextTooLong,
    "request_too_large": ContextTooLong,
    "string_above_max_length": ContextTooLong,
    "invalid_api_key": ModelKeyRefused,
    "authentication_error": ModelKeyRefused,
    "permission_error": ModelKeyRefused,
    "model_not_found": ModelNotFound,
    "not_found_error": ModelNotFound,
}
_BY_STATUS = {
    401: ModelKeyRefused,
    402: ModelQuotaSpent,
    403: ModelKeyRefused,
    404: ModelNotFound,
    408: ModelUnavailable,
    409: ModelUnavailable,
    413: ContextTooLong,
    425: ModelUnavailable,
    429: ModelRateLimited,
    503: ModelOverloaded,
    529: ModelOverloaded,
}
_PEOPLE_SAY = (
    (
        ContextTooLong,
        re.compile(
            r"prompt is too long|maximum context length|context window|"
            r"context length|exceeds? the (available )?context",
            re.I,
        ),
    ),
    (ModelQuotaSpent, re.compile(r"credit balance|spend(ing)? limit|usage limits", re.I)),
)


def read_error(status: int, headers: Mapping[str, str], raw: bytes) -> ModelError:
    """The error that an answer other than 200 means. Never raises."""
    try:
        body = msgspec.json.decode(raw)
    except (ValueError, RecursionError):
        body = None  # a proxy's page, or nothing
    told = _told(body)
    kind = _kind(status, told)
    text = f"answered {status}" + (f": {_shown(told)}" if _shown(told) else "")
    if 300 <= status <= 399:
        text += " (redirects are not followed: check the endpoint's URL)"
    return _made(kind, text, status=status, retry_after_s=_wait_s(headers))


def error_inside(body: Object) -> ModelError:
    """The error that was put into a 200 or into a stream."""
    told = _told(body)
    status = told.get("code") if type(told.get("code")) is int else None
    words = [_BY_WORD[word] for word in _words(told) if word in _BY_WORD]
    text = f"broke off with an error: {_shown(told)}"
    if not words and status is None:
        return ReplyGarbled(text, reason="garbage")
    kind = words[0] if words else _kind(cast(int, status), told)
    return _made(kind, text, status=cast("int | None", status), retry_after_s=None)


def about_the_request(error: HoldfastError) -> bool:
    """True where no other endpoint could do better with this request."""
    own = (ModelKeyRefused, ModelNotFound, ModelQuotaSpent)
    return isinstance(error, ModelRejected) and not isinstance(error, own)


def _kind(status: int, told: Object) -> type[ModelUnavailable | ModelRejected]:
    words = _words(told)
    specific = [_BY_WORD[word] for word in words if word in _BY_WORD]
    if any(kind is ModelQuotaSpent for kind in specific):  # a 429 with a reason of its own
        return ModelQuotaSpent
    if status in (400, 422, 429):
        said = str(told.get("message", ""))
        found = [kind for kind, pattern in _PEOPLE_SAY if pattern.search(said)]
        if found and (status != 429 or found[0] is ModelQuotaSpent):
            return found[0]
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    if status >= 500:
        return ModelUnavailable
    return next((kind for kind in specific if issubclass(kind, ModelRejected)), ModelRejected)


def _made(
    kind: type[ModelUnavailable | ModelRejected], text: str, *, status: int | None, retry_after_s: float | None
) -> ModelError:
    if issubclass(kind, ModelUnavailable):
        return kind(text, retry_after_s=retry_after_s, status=status)
    return kind(text, status=status)


def _told(body: object) -> Object:
    """The error object of either provider, wherever it is."""
    if not isinstance(body, dict):
        return {}
    inner = cast(Object, body).get("error")
    if isinstance(inner, dict):
        return cast(Object, inner)
    found = cast(Object, body)
    return {"message": inner, **found} if isinstance(inner, str) else found


def _words(told: Object) -> list[str]:
    details = told.get("details")
    deeper = cast(Object, details).get("error_code") if isinstance(details, dict) else None
    return [word for word in (deeper, told.get("code"), told.get("type")) if isinstance(word, str)]


def _shown(told: Object) -> str:
    text = ": ".join(str(told[name]) for name in ("type", "message") if isinstance(told.get(name), str))
    clean = "".join(char if char.isprintable() else " " for char in text)
    return clean if len(clean) <= SHOWN_CHARS_MAX else clean[:SHOWN_CHARS_MAX] + "..."


def _wait_s(headers: Mapping[str, str]) -> float | None:
    exact = headers.get("retry-after-ms", "").strip()
    if re.fullmatch(r"\d{1,9}", exact, re.ASCII):
        return min(int(exact) / 1000, answers.RETRY_AFTER_MAX_S)
    return answers.retry_after_s(headers)
