"""What a request asks of a far end: parsed and checked before anything is looked up."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import cast

from holdfast.downstream.http_server import Request
from holdfast.downstream.keys import BadKey, parse_key
from holdfast.downstream.profiles import Body, Profile

REFERENCE_CHARS_MAX = 255
FENCE_MAX = 2**64 - 1
_RESOURCE = re.compile(r"[A-Za-z0-9._-]{1,100}", re.ASCII)


class BadOrder(Exception):
    """The request is refused before it is worked on, with 400 and a reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    status: int
    body: Body
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A request that makes sense for this far end."""

    key: str | None
    reference: str | None
    fence: int | None
    resource: str | None
    body: Body
    fingerprint: str


def problem(status: int, title: str, *headers: tuple[str, str]) -> Reply:
    """An error answer in the form of RFC 9457."""
    return Reply(status=status, body={"title": title, "status": status}, headers=headers)


def parse_order(ask: Request, profile: Profile, *, key_header: str) -> Order:
    """Check the request against the far end's contract. Raises BadOrder: what is missing or malformed."""
    body = parse_object(ask.body) if ask.method != "GET" else {}
    if wrong := profile.problem(body):
        raise BadOrder(wrong)
    return Order(
        key=_key(ask, profile, key_header),
        reference=_reference(ask, body) if profile.reference else None,
        fence=_fence(ask) if profile.fence else None,
        resource=_resource(ask) if profile.noun == "resources" else None,
        body=body,
        fingerprint=_fingerprint(ask, body),
    )


def parse_object(raw: bytes) -> Body:
    """Raises BadOrder: not UTF-8, not JSON, not an object, nested too deeply, or not finite."""
    try:
        value: object = json.loads(raw.decode(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise BadOrder(f"the body is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise BadOrder("the body is not a JSON object")
    return cast(Body, value)


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def _key(ask: Request, profile: Profile, header: str) -> str | None:
    try:
        key = parse_key(ask.all(header))
    except BadKey as error:
        if profile.key == "ignored":
            return None
        raise BadOrder(str(error)) from error
    if key is None and profile.key == "required":
        raise BadOrder(f"{header} is missing")
    return key


def _reference(ask: Request, body: Body) -> str:
    reference = body.get("reference")
    task, step = ask.first("holdfast-task"), ask.first("holdfast-step")
    if reference is None and task and step:
        reference = f"{task}/{step}"
    if not isinstance(reference, str) or not 1 <= len(reference) <= REFERENCE_CHARS_MAX:
        raise BadOrder(f"reference must be text of 1 to {REFERENCE_CHARS_MAX} characters")
    return reference


def _fence(ask: Request) -> int:
    values = ask.all("holdfast-fence")
    if len(values) != 1 or not re.fullmatch(r"[0-9]{1,20}", values[0], re.ASCII):
        raise BadOrder("Holdfast-Fence must be one whole number")
    if int(values[0]) > FENCE_MAX:
        raise BadOrder("Holdfast-Fence must fit into 64 bits")
    return int(values[0])


def _resource(ask: Request) -> str:
    name = ask.path.removeprefix("/resources/")
    if not _RESOURCE.fullmatch(name):
        raise BadOrder("a resource name has 1 to 100 letters, digits, '.', '_' or '-'")
    return name


def _fingerprint(ask: Request, body: Body) -> str:
    """Equal for equal requests, however the JSON was spaced or ordered."""
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(f"{ask.method}\n{ask.path}\n{canonical}".encode()).hexdigest()
