"""The address of a relay without its key: `https://host[:port]`, in one spelling."""

from __future__ import annotations

import ipaddress
import re
from functools import lru_cache
from urllib.parse import urlsplit

from holdfast.errors import BadInput

_HOST = re.compile(r"[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?|[0-9a-f:.]+")
URL_CHARS_MAX = 200
LABEL_CHARS_MAX = 63  # between two dots of a host: a longer one cannot even be asked for
FORM_HINT = "write it as the relay prints it: https://relay.example#z6Mk... (http:// only for this machine itself)"


@lru_cache(maxsize=1_024)  # for each message the relays of its recipient
def parse_relay_url(text: str) -> str:
    """The address of a relay without its key, in one spelling. Raises BadInput."""
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise BadInput(f"{text!r} is not the address of a relay: {error}", hint=FORM_HINT) from None
    rest = (parts.path.strip("/"), parts.query, parts.fragment, parts.username, parts.password)
    is_host = _HOST.fullmatch(host) and all(0 < len(one) <= LABEL_CHARS_MAX for one in host.split("."))
    if parts.scheme not in ("https", "http") or not is_host or len(text) > URL_CHARS_MAX or any(rest):
        raise BadInput(f"{text!r} is not the address of a relay", hint=FORM_HINT)
    if parts.scheme == "http" and not is_loopback(host):
        raise BadInput(f"{text!r} would send everything unencrypted to another machine", hint=FORM_HINT)
    usual = 443 if parts.scheme == "https" else 80
    return f"{parts.scheme}://" + host_text(host, None if port == usual else port)


def host_text(host: str, port: int | None) -> str:
    """As a url has it: an IPv6 address is in brackets."""
    return (f"[{host}]" if ":" in host else host) + ("" if port is None else f":{port}")


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
