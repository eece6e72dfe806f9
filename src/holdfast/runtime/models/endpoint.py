"""One endpoint of a model: where it is, how it is spoken to, and one exchange with it.

The key comes from a secret or a callable at each request, so that a rotated one is used at once. It is in the request's
header and nowhere else: not in this value's repr, not in an error, not even where the far end repeats it in its own.
"""

from __future__ import annotations

import ipaddress
import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import quote

import msgspec

from holdfast.core.secret_handles import find_whole
from holdfast.errors import BadSettings, ModelKeyRefused, ModelRejected, ModelUnavailable, ReplyGarbled, SecretNotFound
from holdfast.runtime.http.exchange import StreamedAnswer, StreamFailed, StreamTooLong, Timeouts
from holdfast.runtime.http.exchange import open_stream as open_http_stream
from holdfast.runtime.http.message import BadRequest, build, parse_url
from holdfast.runtime.models.anthropic import AnthropicWire
from holdfast.runtime.models.openai import OpenAIWire
from holdfast.runtime.models.reply import Keys, Reply
from holdfast.runtime.models.troubles import ModelError, read_error
from holdfast.runtime.models.wire import EventReader, WireForm

REPLY_BYTES_MAX = 32 * 1024 * 1024
STREAM_BYTES_MAX = 128 * 1024 * 1024  # each token of a stream comes in an envelope of its own
ERROR_BYTES_MAX = 64 * 1024
KEPT_CHARS_MAX = 256

WIRE_FORMS: Mapping[str, WireForm] = {"openai": OpenAIWire(), "anthropic": AnthropicWire()}
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)
_KEY = re.compile(r"[!-~]{1,4096}", re.ASCII)
_KEPT = re.compile(r"[!-~]{1,256}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """An address at which a model answers requests.

    Args:
        url: the base URL with the version: `https://host/v1`.
        wire: "openai" or "anthropic".
        key: `secret://NAME`, or a function; Holdfast gets the value when it sends a request. None: the
            endpoint needs no key.
        affinity_header: the header in which Holdfast sends a name for the conversation, a different one to
            each endpoint. If the endpoint answers with its own value, Holdfast sends that from then on.
        cache_header: if the endpoint's answer has this header, Holdfast sends its value with the next
            request of the conversation, only to this endpoint.
        headers: further headers; put no secrets there.
        plain_http: allow Holdfast to send the key over http to another machine.
    """

    name: str
    url: str
    wire: str
    key: Callable[[], str] | str | None = field(default=None, repr=False)
    region: str = ""
    affinity_header: str = ""
    cache_header: str = ""
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    timeouts: Timeouts = field(default_factory=Timeouts)
    plain_http: bool = False
    ssl_context: ssl.SSLContext | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise BadSettings(f"endpoint {self.name!r}: the name must have 1 to 64 letters, digits, . - _")
        if isinstance(self.key, str) and find_whole(self.key) is None:
            raise BadSettings(
                f"endpoint {self.name}: do not put the key into code",
                hint="run `holdfast secret set NAME`, then give key='secret://NAME'",
            )
        if self.wire not in WIRE_FORMS:
            raise BadSettings(f"endpoint {self.name}: wire must be one of {', '.join(WIRE_FORMS)}")
        try:
            target = parse_url(self.url)
        except BadRequest as error:
            raise BadSettings(f"endpoint {self.name}: {error}") from None
        if "?" in self.url or "#" in self.url:
            raise BadSettings(f"endpoint {self.name}: the URL must not contain ? or #")
        if self.key and not (target.tls or self.plain_http or _is_here(target.host)):
            raise BadSettings(
                f"endpoint {self.name}: its key would be sent unencrypted",
                hint="use https, or give plain_http=True if the network is your own",
            )

    @property
    def wire_form(self) -> WireForm:
        return WIRE_FORMS[self.wire]


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    reply: Reply
    kept: dict[str, str]


async def exchange(
    endpoint: Endpoint,
    body: bytes,
    *,
    show: Callable[[str], None] | None,
    affinity: Mapping[str, str],
    time_s: float | None,
    keys: Keys | None = None,
) -> Answered:
    """Send the body once and read the reply; streamed where `show` is given.

    Raises:
        ModelUnavailable: no reply began.
        ModelRejected: the endpoint says why not.
        ReplyGarbled: a reply began and cannot be used.
    """
    form, key, times = endpoint.wire_form, _get_key(endpoint, keys), endpoint.timeouts
    try:
        message = build(
            "POST",
            endpoint.url.rstrip("/") + form.path,
            body=body,
            headers={**endpoint.headers, **affinity},
            own_headers={"content-type": "application/json", **form.headers(key)},
        )
    except BadRequest as error:
        raise BadSettings(f"endpoint {endpoint.name}: {error}") from None
    if time_s is not None:
        times = replace(times, total_s=min(times.total_s, max(time_s, 0.001)))
    size_max = STREAM_BYTES_MAX if show else REPLY_BYTES_MAX
    try:
        async with open_http_stream(
            message, timeouts=times, body_bytes_max=size_max, ssl_context=endpoint.ssl_context
        ) as answer:
            if answer.status != 200:
                raise _named(await _read_error(answer), endpoint, key)
            try:
                reply = await _read_reply(form, answer, show)
            except (ModelUnavailable, ModelRejected, ReplyGarbled) as error:
                raise _named(error, endpoint, key) from None
            return Answered(reply=_with_request_id(reply, answer), kept=_kept(endpoint, answer))
    except StreamTooLong as error:
        raise ReplyGarbled(f"endpoint {endpoint.name}: {error}", reason="too-large") from None
    except StreamFailed as error:
        text = f"endpoint {endpoint.name}: {error}"
        if error.begun:
            raise ReplyGarbled(text, reason="cut") from None
        raise ModelUnavailable(text) from None


async def _read_reply(form: WireForm, answer: StreamedAnswer, show: Callable[[str], None] | None) -> Reply:
    # A server that cannot stream answers whole, whatever was asked; one that can may misname it.
    kind = answer.headers.get("content-type", "").lower()
    if "json" in kind or (show is None and "event-stream" not in kind):
        return form.decode(await answer.read())
    reader, assembler = EventReader(), form.assembler()
    async for piece in answer.pieces():
        for event in reader.feed(piece):
            text = assembler.take(event)
            if text and show:
                show(text)
    return assembler.finish()


async def _read_error(answer: StreamedAnswer) -> ModelError:
    raw = bytearray()
    try:
        async for piece in answer.pieces():
            raw += piece
            if len(raw) > ERROR_BYTES_MAX:
                break
    except StreamFailed:
        pass  # the status has said enough
    return read_error(answer.status, answer.headers, bytes(raw))


def _named(error: ModelError, endpoint: Endpoint, key: str | None) -> ModelError:
    """The same error, saying whose it is, without the key."""
    text = f"endpoint {endpoint.name}: {error.message}"
    for secret in (key, quote(key, safe="")) if key else ():
        text = text.replace(secret, "[key]")
    error.message, error.args = text, (text,)
    return error


def _get_key(endpoint: Endpoint, keys: Keys | None) -> str | None:
    if endpoint.key is None:
        return None
    try:
        key = _from_secret(endpoint, keys) if isinstance(endpoint.key, str) else endpoint.key()
    except ModelKeyRefused:
        raise
    except Exception as error:  # noqa: BLE001 - whatever it says may hold a secret
        kind = type(error).__name__
        raise ModelKeyRefused(f"endpoint {endpoint.name}: the function that gives its key raised {kind}") from None
    if not isinstance(key, str) or not _KEY.fullmatch(key):  # pyright: ignore[reportUnnecessaryIsInstance] - a border
        raise ModelKeyRefused(
            f"endpoint {endpoint.name}: its key is empty or has characters that a header must not have"
        )
    return key


def _from_secret(endpoint: Endpoint, keys: Keys | None) -> str:
    where = f"endpoint {endpoint.name}: its key {endpoint.key}"
    name = find_whole(endpoint.key)
    if keys is None or name is None:
        raise ModelKeyRefused(f"{where} is a secret handle; Holdfast can look it up only while it runs a task")
    try:
        return keys(name)
    except SecretNotFound:
        raise ModelKeyRefused(f"{where} is not set: run `holdfast secret set {name}`") from None


def _kept(endpoint: Endpoint, answer: StreamedAnswer) -> dict[str, str]:
    """What the endpoint wants to see again, as far as it can be kept."""
    names = {"affinity": endpoint.affinity_header, "cache": endpoint.cache_header}
    given = {what: answer.headers.get(name.lower(), "") for what, name in names.items() if name}
    return {what: text for what, text in given.items() if _KEPT.fullmatch(text)}


def _with_request_id(reply: Reply, answer: StreamedAnswer) -> Reply:
    given = answer.headers.get("x-request-id") or answer.headers.get("request-id") or ""
    if not given:
        return reply
    return msgspec.structs.replace(reply, ids={**reply.ids, "request": given[:KEPT_CHARS_MAX]})


def _is_here(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
