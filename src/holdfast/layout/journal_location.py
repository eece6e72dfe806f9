"""Where the journal is, from what a person wrote. Loads little: a supervising parent uses it too."""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.core.journal_address import FILE, JournalAddress, check_path, file_at, is_url, parse_journal_url
from holdfast.errors import BadInput
from holdfast.layout.agent_home import home_folder
from holdfast.layout.settings import NAME, read_fields

Where = str | os.PathLike[str] | JournalAddress


def journal_address(where: Where, *, home: str | os.PathLike[str] | None = None) -> JournalAddress:
    """The journal at this path or url. `home` is this host's folder for a journal on a server; default: $HOLDFAST_HOME,
    else this folder. A file is its own folder's. Raises BadInput."""
    if isinstance(where, JournalAddress):
        return where
    text = os.fspath(where)
    if is_url(text):
        url = parse_journal_url(text)
        return JournalAddress(folder=home_folder(None if home is None else os.fspath(home)), url=url)
    if home is not None:
        raise BadInput("a journal in a file needs no other folder", hint="leave `home` out, or give a url")
    check_path(text)
    if not text or "\0" in text:
        raise BadInput(f"{text!r} is not a valid path")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadInput("the path is not valid text (a lone surrogate)") from None
    path = Path(os.path.abspath(text))
    return file_at(path / FILE if path.is_dir() else path)


def journal_in(folder: Path) -> JournalAddress:
    """The journal of this folder: the url in its settings, else the file journal.db. Raises as `read_fields` does."""
    settings = folder / NAME
    url = str(read_fields(settings).get("journal_url", "")) if os.path.lexists(settings) else ""
    return JournalAddress(folder=folder, url=parse_journal_url(url)) if url else file_at(folder / FILE)
