"""relay.toml in a relay's folder: settings of its operator, no secrets. Parsed strictly."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec

from holdfast.core.decoding import convert
from holdfast.errors import BadInput, BadSettings
from holdfast.host.private_files import read_plain
from holdfast.layout.relay_url import host_text, is_loopback, parse_relay_url

NAME = "relay.toml"
FILE_BYTES_MAX = 1 << 16
HINT = "see `holdfast explain relay-settings`"
Count = Annotated[int, msgspec.Meta(ge=1)]


class RelaySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    listen: str = "127.0.0.1:7411"
    url: str = ""  # what agents use; empty: http:// and `listen`
    region: Annotated[str, msgspec.Meta(max_length=100)] = ""  # where it runs, for people: agents spread over regions
    registration: Literal["invite", "open"] = "invite"
    registrations_an_hour: Count = 10  # of one address, where registration is open
    agents_max: Count = 100_000
    tls_cert: str = ""  # a file with the certificate and its chain
    tls_key: str = ""
    behind_proxy: bool = False  # a proxy does TLS, and nothing else reaches the port
    proxies: tuple[str, ...] = ("127.0.0.1", "::1")  # whose X-Forwarded-For is believed, with `behind_proxy`
    metrics_from: tuple[str, ...] = ("127.0.0.1", "::1")  # who may read /metrics
    connections_max: Count = 4_000
    connections_of_address: Count = 1_000  # of those; a proxy's are not counted, nor those of agents that logged in
    mails_per_s: Count = (
        400  # requests about mail of one address, or of an agent that logged in; a burst may be 4 times that
    )
    mails_of_agent_per_s: Count = 50  # of one sender
    mailbox_mails: Count = 10_000  # that wait; as many again may be held
    mailbox_mib: Count = 64
    free_mib_min: Count = 512  # with less on its disk, the relay takes no new mail

    @property
    def name(self) -> str:
        """Of handles, ada@NAME: those who look for one know the host of the relay's address, and nothing else."""
        return urlsplit(self.url).hostname or ""

    @property
    def host_port(self) -> tuple[str, int]:
        parts = urlsplit(f"//{self.listen}")
        return parts.hostname or "", parts.port or 0


def read_relay_settings(folder: Path, **given: object) -> RelaySettings:
    """The file, if there is one, with what the command line gave. Raises BadSettings."""
    path = folder / NAME
    typed = {name: value for name, value in given.items() if value}
    where = "" if typed else f"{path}: "
    try:
        fields = tomllib.loads(read_plain(path, FILE_BYTES_MAX).decode())
    except FileNotFoundError:
        fields = {}
    except OSError as error:
        raise BadSettings(f"{path} cannot be read: {error.strerror}", hint=HINT) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadSettings(f"{path}: {error}", hint=HINT) from None
    fields |= typed
    try:
        settings = convert(fields, RelaySettings)
        name, _, number = settings.listen.rpartition(":")
        if not name or not number.isdecimal():
            raise BadSettings(
                f"`listen` must be HOST:PORT, and is {settings.listen!r}", hint="for example --listen 127.0.0.1:7411"
            )
        host, port = settings.host_port
        _check_open_to_others(settings, where)
        url = parse_relay_url(settings.url or f"http://{settings.listen}")
    except (msgspec.ValidationError, ValueError, BadInput) as error:
        hint = f"{HINT}; give `url` where the relay does not listen on this machine alone"
        raise BadSettings(f"{where}{error}", hint=hint) from None
    if not host or bool(settings.tls_cert) != bool(settings.tls_key):
        raise BadSettings(f"{where}`listen` must be HOST:PORT, and `tls_cert` and `tls_key` need each other")
    return msgspec.structs.replace(settings, url=url, listen=host_text(host, port))


def _check_open_to_others(settings: RelaySettings, where: str) -> None:
    if not (is_loopback(settings.host_port[0]) or settings.tls_cert or settings.behind_proxy):
        raise BadSettings(
            f"{where}on {settings.listen} the relay would serve other machines without TLS",
            hint="set tls_cert and tls_key; or listen on 127.0.0.1; or set behind_proxy = true if a proxy does TLS",
        )
