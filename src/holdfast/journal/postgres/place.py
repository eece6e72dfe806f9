"""Where the journal is: one schema of one database; how connections to it are made.

A connection may come from a pooler in transaction mode, so nothing is kept in it: no settings but for the transaction
(`SETTINGS`), no temporary tables, no prepared statements but where there is no pooler (`adding.py`). What a commit must
be (synced, and replicated where the server has a synchronous standby) is said in every transaction again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import psycopg
from psycopg import AsyncConnection, Connection
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from holdfast.errors import BadInput

DEFAULT_SCHEMA = "holdfast"
SCHEMA, DIRECT = "schema", "direct"  # our own names among the options of a url
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,47}")
_CONNECT = {
    "application_name": "holdfast",
    "connect_timeout": "5",  # of each host: one that is gone must not cost a whole lease
    # A peer that is gone without a word is noticed well before the lease is over.
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "9000",
}
_TEXT = {"client_encoding": "UTF8"}  # whatever the user or the environment says: every text can be kept
STATELESS: dict[str, Any] = {"autocommit": True, "prepare_threshold": None}  # Any: options of the driver
DATABASE_TIME = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
# Of the log as it is written now: the control file's value lags behind until a checkpoint.
TIMELINE = "substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)"

Row = tuple[Any, ...]  # Any: what the driver makes of columns

WARNING = "01000"


class Wire(AsyncConnection[Row]):
    """A connection that remembers where it leads, the warning of its last commit, and what was done over it."""

    def __init__(self, *given: Any, **named: Any) -> None:  # Any: the driver's own arguments
        super().__init__(*given, **named)
        self.address = (self.info.host, str(self.info.port))
        self.warned = ""
        self.looked_at: set[str] = set()  # rows of `tally` that were seen as their lanes left them
        self.prepared_until: float | None = None  # the statements of `adding.py`; 0: never
        self.add_notice_handler(self._hear)

    def _hear(self, notice: psycopg.errors.Diagnostic) -> None:
        if notice.sqlstate == WARNING:
            self.warned = notice.message_primary or WARNING


class Known(NamedTuple):
    """What the last connection has shown of one of several hosts."""

    address: tuple[str, str]  # host and port, as in the url
    answers: bool


@dataclass(frozen=True, slots=True)
class PostgresPlace:
    """One journal: a database by its connection string, and the name of a schema."""

    conninfo: str
    schema: str = DEFAULT_SCHEMA
    server: str = ""  # "HOST:PORT" of the server itself, where the url leads to a pooler
    time: str = DATABASE_TIME  # SQL: the journal's own clock; tests turn it by hand
    timeline: str = TIMELINE

    @classmethod
    def read(cls, url: str) -> PostgresPlace:
        """Raises BadInput."""
        parts = urlsplit(url)
        options = parse_qsl(parts.query.replace("+", "%2B"), keep_blank_values=True)  # to libpq, a plus is a plus
        schema = dict(options).get(SCHEMA, DEFAULT_SCHEMA)
        if not _NAME.fullmatch(schema) or schema.startswith("pg_"):
            raise BadInput(
                f"{schema!r} is not a valid name for the journal's schema",
                hint="use small letters, digits and underscores, at most 48, beginning with a letter",
            )
        rest = urlencode([one for one in options if one[0] not in (SCHEMA, DIRECT)], quote_via=quote)
        try:
            # Put together by hand: `urlunsplit` leaves out the slashes where no host is named.
            given = conninfo_to_dict(f"{parts.scheme}://{parts.netloc}{parts.path}{rest and '?'}{rest}")
        except psycopg.Error as error:
            raise BadInput(
                f"the url of the journal is not valid: {' '.join(str(error).split())}",
                hint="its options are those of libpq, `schema` and `direct`: see `holdfast explain settings`",
            ) from None
        if "," in str(given.get("host") or ""):
            given.setdefault("target_session_attrs", "read-write")
        return cls(make_conninfo("", **{**_CONNECT, **given, **_TEXT}), schema, dict(options).get(DIRECT, ""))

    @property
    def direct(self) -> str:
        """How the server itself is reached: where hints are heard."""
        if not self.server:
            return self.conninfo
        servers = [one.partition(":") for one in self.server.split(",")]
        named = {"host": ",".join(host for host, _, _ in servers), "port": ",".join(port for _, _, port in servers)}
        return make_conninfo("", **{**conninfo_to_dict(self.conninfo), "hostaddr": None, **named})

    @property
    def shown(self) -> str:
        """For people: never a password."""
        given = conninfo_to_dict(self.conninfo)
        named = given.get("host") or (f"service {given['service']}" if given.get("service") else "local")
        at = f"{named}{':' + str(given['port']) if given.get('port') else ''}"
        return f"postgresql://{at}/{given.get('dbname') or given.get('user') or ''} (schema {self.schema})"

    def sql(self, text: str) -> bytes:
        """The statement with the schema's name, and the journal's clock, put in."""
        own = text.replace("$now", self.time).replace("$timeline", self.timeline)
        return own.replace("$s", f'"{self.schema}"').encode()

    async def connect(self, *, known: Known | None = None) -> Wire:
        return await Wire.connect(self.asking(known), **STATELESS)

    def asking(self, known: Known | None) -> str:
        """The hosts in the order in which they are asked: one that answered is the first, one that was lost the last.
        So a host that is gone does not cost every new connection the time that it takes to find that out."""
        given = conninfo_to_dict(self.conninfo)
        hosts, ports = (str(given.get(name) or "").split(",") for name in ("host", "port"))
        if known is None or len(hosts) == 1 or "hostaddr" in given:
            return self.conninfo
        host, port = known.address
        addresses = zip(hosts, ports if len(ports) > 1 else ports * len(hosts), strict=True)
        ordered = sorted(addresses, key=lambda one: (one[0] == host and one[1] in (port, "")) is not known.answers)
        order = {"host": ",".join(one for one, _ in ordered)}
        if len(ports) > 1:
            order["port"] = ",".join(one for _, one in ordered)
        return make_conninfo(self.conninfo, **order)

    def connect_at_once(self) -> Connection[Row]:
        """For what is done from outside any session; blocks."""
        return psycopg.connect(self.conninfo, **STATELESS)
