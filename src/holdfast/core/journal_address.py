"""Where a journal is: a file, or a schema in a database on a server. One value for everything above the journal.

A journal goes with a folder of this host, in which its keys, settings, scratch files and `instance/` are. A file is in
that folder; of a journal on a server every host has such a folder of its own. What people write (an option, a setting,
an argument of `holdfast.open`) is read once, by `layout/journal_location.py`; what kind it is matters to
`journal/bind.py` alone, and to what a backup holds.

A url never has a password in it: it would be seen in the list of processes, in logs and in settings, which hold no
secrets. libpq takes it from a passfile or a service file. Several hosts may be named; all other options are libpq's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from holdfast.errors import BadInput

INSTANCE = "instance"  # what happened on this machine
FILE = "journal.db"
URL_CHARS_MAX = 2_000
_URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_SECRET = ("password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key")
_SERVER = re.compile(
    r"(?P<url>\s*postgres(ql)?:)|(^|\s)(host|hostaddr|dbname|user|password|service)\s*=", re.IGNORECASE
)
_DIRECT = re.compile(r"[\w.:\[\]/-]+(,[\w.:\[\]/-]+)*")
_FORM = "give the path of a file, or postgresql://USER@HOST/DATABASE"
_SERVER_HINT = f"{_FORM}. A password belongs into a passfile (~/.pgpass) or a service file"
_HINT = "remove the password: put it into a passfile (~/.pgpass, or `passfile=FILE` in the url) or into a service file"


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalAddress:
    """A journal, and the folder of this host that goes with it. Nothing here opens or makes a file."""

    folder: Path
    file: str = ""  # its name in the folder; empty: it is on a server
    url: str = ""

    def __str__(self) -> str:
        return self.url or str(self.folder / self.file)

    @property
    def name(self) -> str:
        """What tells it from other journals that go with the folder."""
        return self.url or self.file

    @property
    def path(self) -> Path:
        """The file in the folder: the journal, or the copy of it in a backup."""
        return self.folder / (self.file or FILE)

    @property
    def instance(self) -> Path:
        return self.folder / INSTANCE

    def named(self, name: str) -> JournalAddress:
        """The journal of that name which goes with the same folder."""
        if is_url(name):
            return JournalAddress(folder=self.folder, url=name)
        return JournalAddress(folder=self.folder, file=name)


def file_at(path: Path) -> JournalAddress:
    return JournalAddress(folder=path.parent, file=path.name)


def is_url(text: str) -> bool:
    return _URL.match(text) is not None


def check_path(text: str) -> None:
    """Refuse what is meant to be a server but would become the name of a file. Raises BadInput, and quotes nothing."""
    if found := _SERVER.match(text) or _SERVER.search(text):
        what = "a url with one slash, or none, after its scheme" if found["url"] else "a connection string of libpq"
        raise BadInput(
            f"the journal is given as {what}: it is no path, and no url that Holdfast reads", hint=_SERVER_HINT
        )


def parse_journal_url(text: str) -> str:
    """The url of a journal on a server, as it is kept. Raises BadInput, and quotes no part that may be secret."""
    if not is_url(text):
        check_path(text)
    if len(text) > URL_CHARS_MAX or not text.isascii() or not text.isprintable() or " " in text:
        raise BadInput(
            f"the url of the journal must be at most {URL_CHARS_MAX:,} printable ASCII characters without spaces",
            hint="write other characters as %XX",
        )
    scheme, _, rest = text.partition("://")
    if scheme.lower() not in ("postgresql", "postgres"):
        raise BadInput(f"a journal cannot be at {scheme}://" if is_url(text) else "this is no url", hint=_FORM)
    try:
        parts = urlsplit(f"postgresql://{rest}")
        options = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError as error:
        raise BadInput("the url of the journal is not valid", hint=_FORM) from error
    if ":" in parts.netloc.rpartition("@")[0] or any(name.lower() in _SECRET for name, _ in options):
        raise BadInput("the url of the journal has a password in it, which other users could read", hint=_HINT)
    if not _DIRECT.fullmatch(dict(options).get("direct", "none")):
        raise BadInput("`direct` in the url of the journal is not HOST:PORT", hint="it has no user and no password")
    if parts.fragment or "#" in rest:
        raise BadInput("the url of the journal has a # in it", hint="write it as %23")
    return f"postgresql://{rest}"
