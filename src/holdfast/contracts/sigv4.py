"""AWS Signature Version 4 for requests whose whole body is at hand: bytes in, one header out.

Pure: the moment is an argument. Object stores encode a path once and do not tidy it, which is what
`encoded_path` does and what is signed here unchanged.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from datetime import UTC, datetime
from urllib.parse import quote

ALGORITHM = "AWS4-HMAC-SHA256"


def encoded_path(path: str) -> str:
    """The path as it is sent and signed; slashes stay."""
    return quote(path, safe="/-_.~")


def amz_date(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")


def sha256_hex(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()


def authorization(
    method: str,
    path: str,
    headers: Mapping[str, str],
    *,
    payload_sha256: str,
    access_key: str,
    secret_key: str,
    region: str,
    at: datetime,
    service: str = "s3",
    query: Mapping[str, str] | None = None,
) -> str:
    """The Authorization header for this request.

    Args:
        path: as `encoded_path` gives it.
        headers: those to sign; `host` and every `x-amz-*` must be among them, `x-amz-date` too.
    """
    canonical, signed = canonical_request(method, path, headers, payload_sha256=payload_sha256, query=query)
    moment = amz_date(at)
    scope = f"{moment[:8]}/{region}/{service}/aws4_request"
    text = "\n".join((ALGORITHM, moment, scope, sha256_hex(canonical.encode())))
    key = f"AWS4{secret_key}".encode()
    for part in (moment[:8], region, service, "aws4_request"):
        key = hmac.digest(key, part.encode(), hashlib.sha256)
    signature = hmac.digest(key, text.encode(), hashlib.sha256).hex()
    return f"{ALGORITHM} Credential={access_key}/{scope},SignedHeaders={signed},Signature={signature}"


def canonical_request(
    method: str, path: str, headers: Mapping[str, str], *, payload_sha256: str, query: Mapping[str, str] | None = None
) -> tuple[str, str]:
    """The text whose digest is signed, and the names of the headers in it."""
    tidy = {name.lower(): " ".join(value.split()) for name, value in headers.items()}
    names = sorted(tidy)
    pairs = sorted((quote(name, safe="-_.~"), quote(value, safe="-_.~")) for name, value in (query or {}).items())
    signed = ";".join(names)
    lines = [
        method,
        path,
        "&".join(f"{name}={value}" for name, value in pairs),
        *(f"{name}:{tidy[name]}" for name in names),
        "",
        signed,
        payload_sha256,
    ]
    return "\n".join(lines), signed
