"""One HTTP request as bytes and its answer as a value; nothing here touches a socket.

A request is made whole and checked before a connection is opened, so every mistake in it is
found while it is still certain that no byte has left.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode, urlsplit

import h11
import msgspec

from holdfast.core import values
from holdfast.errors import BadValue, HttpUnknown, NotSent, TooLarge

REQUEST_BODY_BYTES_MAX = 32 * 1024 * 1024
URL_CHARS_MAX = 16 * 1024
SHOWN_BODY_CHARS_MAX = 4096  # what a proof keeps of an answer's body

# The client sets these; a tool that sets them could send twice or hide what it sent.
FORBIDDEN_HEADERS = frozenset(
    {"connection", "content-length", "expect", "host", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"}
)
_METHOD = re.compile(r"[A-Z]{1,20}", re.ASCII)
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}", re.ASCII)
# As the parser has it: no NUL, no line end, no blank at either end.
_HEADER_VALUE = re.compile(r"(?:[^\0\s](?:[^\0\r\n]*[^\0\s])?)?", re.ASCII)


class BadRequest(NotSent):
    """The request itself is wrong: nothing was sent, and sending it again cannot help."""


class AnswerUnknown(HttpUnknown):
    """The request was sent, and no answer came that says whether it was done. `status` is the far end's, or None where
    no whole answer came; `evidence` is JSON."""

    def __init__(self, message: str, *, status: int | None = None, evidence: object = None) -> None:
        super().__init__(message)
        self.status = status
        self.evidence = evidence


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer. Header names are lower case; repeated ones are joined by a comma."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")

    def json(self) -> Any:  # Any: the shape is the far end's; the tool knows it
        """Parse the body. Raises AnswerUnknown: the body is not JSON, so the far end said nothing we can use."""
        try:
            return values.decode(self.body)
        except (ValueError, RecursionError) as error:  # not JSON, or not UTF-8 inside
            raise AnswerUnknown(
                f"answer {self.status} is not JSON: {error}", status=self.status, evidence=self.proof()
            ) from error

    def proof(self) -> dict[str, object]:
        """What a record keeps of this answer: status and the beginning of the body."""
        return {"status": self.status, "body": self.text[:SHOWN_BODY_CHARS_MAX]}


class Destination(msgspec.Struct, frozen=True, kw_only=True):
    """Where a URL leads. `shown` leaves out the query, which may hold a secret."""

    tls: bool
    host: str
    port: int
    host_header: str
    path: str
    shown: str


def recorder_at(port: int) -> Destination:
    """The recording far end of a drill, which takes a request whatever its URL is."""
    return Destination(tls=False, host="127.0.0.1", port=port, host_header="", path="", shown="the drill's recorder")


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A request ready to be handed to the kernel, and the parser that awaits its answer."""

    method: str
    target: Destination
    raw: bytes
    parser: h11.Connection


def build(
    method: str,
    url: str,
    *,
    params: Mapping[str, str] | None = None,
    json: object = None,
    body: bytes | None = None,
    headers: Mapping[str, str] | None,
    own_headers: Mapping[str, str],
) -> Message:
    """Make the request's bytes: own headers win, and a different value for one is refused. Raises BadRequest: method,
    URL, header or body is not acceptable."""
    if not _METHOD.fullmatch(method) or method == "CONNECT":
        raise BadRequest(f"{method!r} is not an HTTP method that Holdfast can send")
    target = parse_url(url, params=params)
    content, content_type = _content(json, body)
    merged = {
        "host": target.host_header,
        "user-agent": "holdfast",
        "accept": "*/*",
        "accept-encoding": "identity",
        **content_type,
        **_checked_headers(headers or {}, own_headers),
        "connection": "close",
    }
    if content or method not in ("GET", "HEAD"):
        merged["content-length"] = str(len(content))
    parser = h11.Connection(h11.CLIENT, max_incomplete_event_size=64 * 1024)
    try:
        parts = [
            parser.send(h11.Request(method=method, target=target.path, headers=[*merged.items()])),
            parser.send(h11.Data(data=content)) if content else b"",
            parser.send(h11.EndOfMessage()),
        ]
    except (h11.LocalProtocolError, UnicodeEncodeError):
        # From None: the parser's own words repeat the header, which may hold a secret.
        raise BadRequest(f"{method} {target.shown}: a header has a character that HTTP forbids") from None
    return Message(method=method, target=target, raw=b"".join(part or b"" for part in parts), parser=parser)


def parse_url(url: str, *, params: Mapping[str, str] | None = None) -> Destination:
    """Check a URL: http or https, printable ASCII, no credentials. Raises BadRequest: what is wrong, without repeating
    the URL, which may hold a secret."""
    if len(url) > URL_CHARS_MAX:
        raise BadRequest(f"the URL has {len(url)} characters; the limit is {URL_CHARS_MAX}")
    if any(not "!" <= char <= "~" for char in url):
        raise BadRequest("the URL has a space, a control or a non-ASCII character: percent-encode it")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise BadRequest(f"not a URL: {error}") from error
    host = parts.hostname or ""
    if parts.scheme not in ("http", "https"):
        raise BadRequest("the URL must begin with http:// or https://")
    if "@" in parts.netloc:
        raise BadRequest("the URL contains credentials: send them in a header")
    if not host or "%" in host or "\\" in parts.netloc or port == 0:
        raise BadRequest("the URL has no valid host or port")
    tls = parts.scheme == "https"
    try:
        given = urlencode(params or {})
    except UnicodeEncodeError as error:
        raise BadRequest("a query parameter has a lone surrogate, which cannot be sent as UTF-8") from error
    query = "&".join(text for text in (parts.query, given) if text)
    bracketed = f"[{host}]" if ":" in host else host
    host_header = bracketed if port is None else f"{bracketed}:{port}"
    path = parts.path or "/"
    return Destination(
        tls=tls,
        host=host,
        port=port or (443 if tls else 80),
        host_header=host_header,
        path=f"{path}?{query}" if query else path,
        shown=f"{parts.scheme}://{host_header}{path}",
    )


def _content(json: object, body: bytes | None) -> tuple[bytes, dict[str, str]]:
    if json is not None and body is not None:
        raise BadRequest("pass json or body, not both")
    if json is None:
        content, kind = body or b"", {}
    else:
        try:
            raw = values.encode(values.checked(json, what="json"), what="json", bytes_max=REQUEST_BODY_BYTES_MAX)
        except (BadValue, TooLarge) as error:
            raise BadRequest(str(error)) from error
        content, kind = raw, {"content-type": "application/json"}
    if len(content) > REQUEST_BODY_BYTES_MAX:
        raise BadRequest(f"body has {len(content):,} bytes; the limit is {REQUEST_BODY_BYTES_MAX:,}")
    return content, kind


def _checked_headers(given: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    result: dict[str, str] = {}
    for name, value in own.items():
        result[_checked_name(name, value)] = value
    reserved = dict(result)
    seen: set[str] = set()
    for name, value in given.items():
        low = _checked_name(name, value)
        if low in seen:
            raise BadRequest(f"header {name!r} is given twice")
        if (low in reserved or low.startswith("holdfast-")) and reserved.get(low) != value:
            raise BadRequest(f"header {name!r} is set by Holdfast and cannot have another value")
        seen.add(low)
        result[low] = value
    return result


def _checked_name(name: str, value: object) -> str:
    low = name.lower()
    if not isinstance(value, str):
        raise BadRequest(f"header {name!r} must be text, not {type(value).__name__}")
    if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
        raise BadRequest(f"header {name!r} has a character that HTTP forbids")
    if low in FORBIDDEN_HEADERS or low.startswith("proxy-"):
        raise BadRequest(f"header {name!r} is set by Holdfast's HTTP client")
    return low
