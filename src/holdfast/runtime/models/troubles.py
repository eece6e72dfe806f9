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

from holdfast import errors
from holdfast.core import answers
from holdfast.core.decoding import decode_json
from holdfast.runtime.models.request import Object

SHOWN_CHARS_MAX = 300
ModelError = errors.ModelUnavailable | errors.ModelRejected | errors.ReplyGarbled
_Kind = type[errors.ModelUnavailable | errors.ModelRejected]

_BY_WORD = {  # a provider's `code` or `type`
    "rate_limit_error": errors.ModelRateLimited,
    "rate_limit_exceeded": errors.ModelRateLimited,
    "overloaded_error": errors.ModelOverloaded,
    "server_error": errors.ModelUnavailable,
    "api_error": errors.ModelUnavailable,
    "timeout_error": errors.ModelUnavailable,
    "insufficient_quota": errors.ModelQuotaSpent,
    "billing_error": errors.ModelQuotaSpent,
    "billing_hard_limit_reached": errors.ModelQuotaSpent,
    "enforced_spend_limit_reached": errors.ModelQuotaSpent,
    "context_length_exceeded": errors.ContextTooLong,
    "request_too_large": errors.ContextTooLong,
    "string_above_max_length": errors.ContextTooLong,
    "invalid_api_key": errors.ModelKeyRefused,
    "authentication_error": errors.ModelKeyRefused,
    "permission_error": errors.ModelKeyRefused,
    "model_not_found": errors.ModelNotFound,
    "not_found_error": errors.ModelNotFound,
}
_BY_STATUS = {
    401: errors.ModelKeyRefused,
    402: errors.ModelQuotaSpent,
    403: errors.ModelKeyRefused,
    404: errors.ModelNotFound,
    408: errors.ModelUnavailable,
    409: errors.ModelUnavailable,
    413: errors.ContextTooLong,
    425: errors.ModelUnavailable,
    429: errors.ModelRateLimited,
    503: errors.ModelOverloaded,
    529: errors.ModelOverloaded,
}
_PEOPLE_SAY = (
    (
        errors.ContextTooLong,
        re.compile(
            r"prompt is too long|maximum context length|context window|"
            r"context length|exceeds? the (available )?context",
            re.I,
        ),
    ),
    (errors.ModelQuotaSpent, re.compile(r"credit balance|spend(ing)? limit|usage limits", re.I)),
)


def read_error(status: int, headers: Mapping[str, str], raw: bytes) -> ModelError:
    """The error that an answer other than 200 means. Never raises."""
    try:
        body = decode_json(raw)
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
        return errors.ReplyGarbled(text, reason="garbage")
    kind = words[0] if words else _kind(cast(int, status), told)
    return _made(kind, text, status=cast("int | None", status), retry_after_s=None)


def about_the_request(error: errors.HoldfastError) -> bool:
    """True where no other endpoint could do better with this request."""
    own = (errors.ModelKeyRefused, errors.ModelNotFound, errors.ModelQuotaSpent)
    return isinstance(error, errors.ModelRejected) and not isinstance(error, own)


def _kind(status: int, told: Object) -> _Kind:
    words = _words(told)
    specific = [_BY_WORD[word] for word in words if word in _BY_WORD]
    if any(kind is errors.ModelQuotaSpent for kind in specific):  # a 429 with a reason of its own
        return errors.ModelQuotaSpent
    if status in (400, 422, 429):
        said = str(told.get("message", ""))
        found = [kind for kind, pattern in _PEOPLE_SAY if pattern.search(said)]
        if found and (status != 429 or found[0] is errors.ModelQuotaSpent):
            return found[0]
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    if status >= 500:
        return errors.ModelUnavailable
    return next((kind for kind in specific if issubclass(kind, errors.ModelRejected)), errors.ModelRejected)


def _made(kind: _Kind, text: str, *, status: int | None, retry_after_s: float | None) -> ModelError:
    if issubclass(kind, errors.ModelUnavailable):
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
