"""Objects in a store of S3's habits: Idempotent, and conditional where others write too.

* `put` writes, whatever is there: the end state is that of one run as long as no other step or
  program writes the same object before this step is quiet.
* `create` sends `If-None-Match: *`: it writes only where nothing is.
* `replace` sends `If-Match: ETAG`: it writes only over what the code has seen.

A conditional write that is sent again meets its own first copy and gets 412. Every object made
here carries the effect key in its metadata, so the tool looks who has won: its own key is success,
another is a refusal. 409 means that the store was deciding between two at that moment: not known,
sent again. A late copy of a conditional write cannot undo what came after it.

The signature is made in the send path, from secrets that are resolved there.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from holdfast.contracts import sigv4
from holdfast.contracts.reading import Maker, base_url, conclude, picked, secret_name
from holdfast.core import answers
from holdfast.core.effect import Idempotent, Read
from holdfast.errors import Misuse, Refused
from holdfast.runtime.http.message import Response
from holdfast.runtime.tool.tool import Call

MARK = "x-amz-meta-holdfast-key"
KEY_BYTES_MAX = 1024
# Statuses by which such a store says that it wrote nothing. 301 and 307 lead to another region.
REFUSED = answers.REFUSALS | {301, 307}

Place = dict[str, str]
Content = str | None
Result = dict[str, Any]  # Any: JSON


class Objects:
    """One bucket of one account."""

    def __init__(
        self,
        bucket: str,
        *,
        access_key: str,
        secret_key: str,
        session_token: str = "",
        region: str = "us-east-1",
        url: str = "",
        name: str = "object",
        timeout_s: float = 60.0,
    ) -> None:
        """Make the tools.

        Args:
            access_key, secret_key, session_token: handles, `secret://NAME`.
            url: of a store of your own; the bucket is then the first part of the path. Without it
                the bucket is at its own host at Amazon.
            name: the tools are called NAME_put, NAME_create, NAME_replace, NAME_get, NAME_head.
        """
        if not bucket or sigv4.encoded_path(bucket) != bucket or "/" in bucket:
            raise Misuse(f"{bucket!r} is not a valid name of a bucket")
        place = {
            "url": f"{base_url(url)}/{bucket}" if url else f"https://{bucket}.s3.{region}.amazonaws.com",
            "region": region,
            "access_key": access_key,
            "secret_key": secret_key,
            "session_token": session_token,
        }
        names = [
            secret_name(place[what], what=what)
            for what in ("access_key", "secret_key", "session_token")
            if place[what] or what != "session_token"
        ]
        make = Maker(name, given={"place": place}, secrets={"place": names}, http_only=True, timeout_s=timeout_s)
        self.put = make(put, "put", Idempotent())
        self.create = make(create, "create", Idempotent())
        self.replace = make(replace, "replace", Idempotent())
        self.get = make(get, "get", Read())
        self.head = make(head, "head", Read())
        self.tools = [self.put, self.create, self.replace, self.get, self.head]


async def put(
    call: Call,
    *,
    key: str,
    text: Content = None,
    data: Content = None,
    file: Content = None,
    kind: str = "",
    place: Place,
) -> Result:
    """Write an object: `text`, or `data` as base64, or a `file` in the task's scratch folder."""
    return await _write(call, key, _content(call, text, data, file), kind, {}, place)


async def create(
    call: Call,
    *,
    key: str,
    text: Content = None,
    data: Content = None,
    file: Content = None,
    kind: str = "",
    place: Place,
) -> Result:
    """Write an object that must not be there yet; Refused where another one is."""
    return await _write(call, key, _content(call, text, data, file), kind, {"if-none-match": "*"}, place)


async def replace(
    call: Call,
    *,
    key: str,
    etag: str,
    text: Content = None,
    data: Content = None,
    file: Content = None,
    kind: str = "",
    place: Place,
) -> Result:
    """Write over the object that has this etag; Refused where it is another one by now."""
    return await _write(call, key, _content(call, text, data, file), kind, {"if-match": _quoted(etag)}, place)


async def get(call: Call, *, key: str, place: Place) -> Result:
    """The object as `text`, or as base64 in `data` where it is none."""
    response = await _send(call, "GET", key, b"", {}, place)
    told = _told(key, response)
    try:
        return {**told, "text": response.body.decode()}
    except UnicodeDecodeError:
        return {**told, "data": base64.b64encode(response.body).decode()}


async def head(call: Call, *, key: str, place: Place) -> Result | None:
    """What is known of the object; None where there is none."""
    response = await _send(call, "HEAD", key, b"", {}, place, check=False)
    if response.status == 404:
        return None
    conclude(_read(response), response, where=f"HEAD {key}")
    return _told(key, response)


async def _write(call: Call, key: str, raw: bytes, kind: str, condition: Mapping[str, str], place: Place) -> Result:
    digest = hashlib.sha256(raw).digest()
    headers = {
        MARK: call.effect_key,
        "x-amz-checksum-sha256": base64.b64encode(digest).decode(),
        "content-type": kind or "application/octet-stream",
        **condition,
    }
    response = await _send(call, "PUT", key, raw, headers, place, check=False)
    if response.status == 412 and condition:
        return await _who_won(call, key, digest.hex(), response, place)
    conclude(_read(response), response, where=f"PUT {key}")
    return _written(call, key, response, digest.hex())


async def _who_won(call: Call, key: str, sha256: str, refused: Response, place: Place) -> Result:
    """A condition that did not hold: because of an earlier attempt of this step, or of another."""
    now = await _send(call, "HEAD", key, b"", {}, place, effect=False, check=False)
    if now.status == 200 and now.headers.get(MARK) == call.effect_key:
        return _written(call, key, now, sha256)
    if now.status not in (200, 404):
        conclude(
            answers.MeansUnknown(reason=f"412, and the far end answered {now.status} when asked which write won"),
            now,
            where=key,
        )
    raise Refused({**refused.proof(), **picked(now.headers, "etag", MARK)})


async def _send(
    call: Call,
    method: str,
    key: str,
    raw: bytes,
    headers: Mapping[str, str],
    place: Place,
    *,
    effect: bool = True,
    check: bool = True,
) -> Response:
    if not key or len(key.encode()) > KEY_BYTES_MAX:
        raise Misuse(f"an object's key must have 1 to {KEY_BYTES_MAX} bytes, not {len(key.encode())}")
    url = f"{place['url']}/{sigv4.encoded_path(key)}"
    signed = _signed(method, url, raw, headers, place)
    return await call.http.request(method, url, body=raw, headers=signed, effect=effect, check=check)


def _signed(method: str, url: str, raw: bytes, headers: Mapping[str, str], place: Place) -> dict[str, str]:
    """The headers with the signature; `host` is signed, and set by the client."""
    parts, digest, at = urlsplit(url), sigv4.sha256_hex(raw), datetime.now(UTC)
    own = {**headers, "x-amz-date": sigv4.amz_date(at), "x-amz-content-sha256": digest}
    if place["session_token"]:
        own["x-amz-security-token"] = place["session_token"]
    sign = sigv4.authorization(
        method,
        parts.path,
        {**own, "host": parts.netloc},
        payload_sha256=digest,
        at=at,
        access_key=place["access_key"],
        secret_key=place["secret_key"],
        region=place["region"],
    )
    return {**own, "authorization": sign}


def _read(response: Response) -> answers.Meaning:
    """What an answer of such a store proves."""
    if 200 <= response.status <= 299:
        return answers.MeansDone()
    if response.status in REFUSED:
        return answers.MeansRefused()
    return answers.MeansUnknown(reason=f"{response.status} does not say whether it was written")


def _written(call: Call, key: str, response: Response, sha256: str) -> Result:
    """The same whether the write itself was answered or its object was found afterwards."""
    told = picked(_told(key, response), "key", "etag", "version")
    return {**told, "sha256": sha256, "effect_key": call.effect_key}


def _told(key: str, response: Response) -> Result:
    headers = response.headers
    found = {
        "etag": headers.get("etag", "").strip('"') or None,
        "version": headers.get("x-amz-version-id"),
        "kind": headers.get("content-type"),
        "effect_key": headers.get(MARK),
    }
    return {"key": key, **picked(found, *found)}


def _content(call: Call, text: str | None, data: str | None, file: str | None) -> bytes:
    if sum(one is not None for one in (text, data, file)) != 1:
        raise Misuse("pass one of text, data (base64) or file (in the scratch folder)")
    if text is not None:
        return text.encode()
    if data is not None:
        try:
            return base64.b64decode(data, validate=True)
        except binascii.Error as error:
            raise Misuse(f"data is not base64: {error}") from None
    path = (call.scratch / str(file)).resolve()
    if not path.is_relative_to(call.scratch.resolve()):
        raise Misuse(f"{file} is not inside the task's scratch folder")
    return path.read_bytes()


def _quoted(etag: str) -> str:
    bare = etag.strip('"')
    if not bare or not all(char.isalnum() or char == "-" for char in bare):
        raise Misuse(f"{etag!r} is not an etag")
    return f'"{bare}"'
