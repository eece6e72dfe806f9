"""An object store with S3's habits: signatures checked, conditions kept, every write in its book.

The signature is worked out here from the published steps, apart from the client's own code: a
mistake in one of them does not hide in the other.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from holdfast.testing.far_ends.web import Answer, Ask, Trouble, WebFarEnd

SKEW_S_MAX = 900
_CREDENTIAL = re.compile(
    r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\d{8})/([^/]+)/s3/aws4_request, ?"
    r"SignedHeaders=([a-z0-9;-]+), ?Signature=([0-9a-f]{64})"
)


@dataclass(frozen=True, slots=True)
class Written:
    """One write that took place."""

    key: str
    body: bytes
    mark: str
    etag: str
    kind: str


class ObjectStore(WebFarEnd):
    def __init__(self, *, access_key: str, secret_key: str, region: str = "us-east-1") -> None:
        super().__init__()
        self._access_key = access_key
        self._secret_key = secret_key
        self._region = region
        self.writes: list[Written] = []
        self.objects: dict[str, Written] = {}

    def is_effect(self, ask: Ask) -> bool:
        return ask.method == "PUT"

    def enter(self, ask: Ask) -> Answer | None:
        wrong = self._wrong_signature(ask)
        if wrong:
            return _error(403, wrong)
        if hashlib.sha256(ask.body).hexdigest() != ask.headers.get("x-amz-content-sha256"):
            return _error(400, "XAmzContentSHA256Mismatch")
        if ask.method in ("GET", "HEAD"):
            found = self.objects.get(_key(ask))
            if found is None:
                return _error(404, "NoSuchKey")
            return Answer(200, found.body if ask.method == "GET" else None, _headers(found))
        return None

    def work(self, ask: Ask, trouble: Trouble | None) -> Answer:
        key = _key(ask)
        there = self.objects.get(key)
        if ask.headers.get("if-none-match") == "*" and there is not None:
            return _error(412, "PreconditionFailed")
        wanted = ask.headers.get("if-match")
        if wanted is not None and there is None:
            return _error(404, "NoSuchKey")
        if wanted is not None and there is not None and wanted != f'"{there.etag}"':
            return _error(412, "PreconditionFailed")
        claimed = ask.headers.get("x-amz-checksum-sha256")
        digest = base64.b64encode(hashlib.sha256(ask.body).digest()).decode()
        if claimed is not None and claimed != digest:
            return _error(400, "BadDigest")
        etag = hashlib.md5(ask.body, usedforsecurity=False).hexdigest()
        mark = ask.headers.get("x-amz-meta-holdfast-key", "")
        made = Written(key, ask.body, mark, etag, ask.headers.get("content-type", ""))
        self.writes.append(made)
        self.objects[key] = made
        return Answer(200, None, {"etag": f'"{etag}"'})

    def _wrong_signature(self, ask: Ask) -> str:
        found = _CREDENTIAL.fullmatch(ask.headers.get("authorization", ""))
        if found is None or found[1] != self._access_key:
            return "InvalidAccessKeyId"
        if found[3] != self._region:
            return "AuthorizationHeaderMalformed"
        names = found[4].split(";")
        needed = {"host", *(name for name in ask.headers if name.startswith("x-amz-"))}
        if names != sorted(names) or not needed <= set(names):
            return "AccessDenied"  # there were headers present in the request which were not signed
        moment = ask.headers["x-amz-date"]
        at = datetime.strptime(moment, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        if abs(at.timestamp() - time.time() - self.skew_s) > SKEW_S_MAX:
            return "RequestTimeTooSkewed"
        made = signature(ask, names, found[2], found[3], moment, self._secret_key)
        return "" if hmac.compare_digest(made, found[5]) else "SignatureDoesNotMatch"


def signature(ask: Ask, names: list[str], day: str, region: str, moment: str, secret: str) -> str:
    """The four published steps, from the request as it came over the wire."""
    url = urlsplit(ask.target)
    query = sorted(parse_qsl(url.query, keep_blank_values=True))
    step1 = f"{ask.method}\n{quote(unquote(url.path), safe='/~')}\n"
    step1 += "&".join(f"{quote(n, safe='~')}={quote(v, safe='~')}" for n, v in query) + "\n"
    for name in names:
        step1 += f"{name}:{re.sub(' +', ' ', ask.headers[name].strip())}\n"
    step1 += f"\n{';'.join(names)}\n{ask.headers['x-amz-content-sha256']}"
    hashed = hashlib.sha256(step1.encode()).hexdigest()
    step2 = f"AWS4-HMAC-SHA256\n{moment}\n{day}/{region}/s3/aws4_request\n{hashed}"
    step3 = _mac(_mac(_mac(_mac(b"AWS4" + secret.encode(), day), region), "s3"), "aws4_request")
    return _mac(step3, step2).hex()


def _mac(key: bytes, text: str) -> bytes:
    return hmac.new(key, text.encode(), "sha256").digest()


def _key(ask: Ask) -> str:
    return unquote(ask.path).split("/", 2)[2]


def _headers(found: Written) -> dict[str, str]:
    return {
        "etag": f'"{found.etag}"',
        "content-type": found.kind,
        **({"x-amz-meta-holdfast-key": found.mark} if found.mark else {}),
    }


def _error(status: int, code: str) -> Answer:
    return Answer(status, f"<Error><Code>{code}</Code></Error>".encode())
