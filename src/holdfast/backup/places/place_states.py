"""What became of the last runs, for each place: place_state.json, of this host alone, or one text for all hosts.

The file is in the instance folder, which is never backed up: a restored agent has verified nothing yet.

Several processes may write (a worker's loop, a command): each change is made under a lock, over
what the file holds at that moment, and replaces it in one rename.

Hosts that share a journal back up to the same places: what one has made, verified or pruned the others must know, or
they would miss it, back up again and alarm a person. There the journal has the text, and the file is this host's copy
of it: what counts while the server cannot be reached, and what the text begins with.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from holdfast.backup.places.place_state import OK, PlaceState, tried
from holdfast.core.decoding import decode_json
from holdfast.errors import BadPlace, HoldfastError
from holdfast.host.private_files import ensure_private_folder, locked, read_private, write_atomically
from holdfast.journal.admin import SharedState

FILE = "place_state.json"
LOCK = "place_state.lock"
TEXT = "places"  # its name in a journal that hosts share
FORMAT = 1


class _File(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    places: dict[str, PlaceState]
    warning: str = ""  # about the agent's folder, not sent yet


Change = Callable[[PlaceState], PlaceState]
FindShared = Callable[[], SharedState | None]


class PlaceStates:
    """The file in this folder, made with the first change; or the text that the hosts share."""

    def __init__(self, folder: Path, find_shared: FindShared = lambda: None) -> None:
        self._folder = folder
        self._find_shared = find_shared

    def _shared(self) -> SharedState | None:
        try:
            return self._find_shared()
        except HoldfastError:  # it says so itself where it is needed; here this host's copy will do
            self._find_shared = lambda: None
            return None

    def read(self) -> dict[str, PlaceState]:
        """Raises BadPlace where the file is not ours: it is never guessed."""
        return self._read().places

    def warning(self) -> str:
        return self._read().warning

    def warn(self, text: str) -> None:
        """Keep a warning about the agent's folder until it was sent; an empty text removes it."""
        self._write(lambda file: msgspec.structs.replace(file, warning=text))

    def _read(self) -> _File:
        shared = self._shared()
        text = "" if shared is None else shared.read_text(TEXT)
        return _parsed(text.encode(), where=f"text {TEXT!r} of the journal") if text else self._read_file()

    def _read_file(self) -> _File:
        path = self._folder / FILE
        try:
            return _parsed(read_private(path, -1), where=str(path))
        except FileNotFoundError:
            return _File(format=FORMAT, places={})

    def of(self, place: str) -> PlaceState:
        return self.read().get(place, PlaceState())

    def change(self, place: str, change: Change) -> PlaceState:
        def changed(file: _File) -> _File:
            kept = {name: state for name, state in file.places.items() if name != place}
            kept[place] = change(file.places.get(place, PlaceState()))
            return msgspec.structs.replace(file, places=kept)

        return self._write(changed).places[place]

    def tried(self, place: str, error: HoldfastError | None, *, now_ms: int) -> None:
        """After a run to this place, whatever became of it."""
        code, message = (OK, "") if error is None else (error.code, error.message)
        self.change(place, lambda state: tried(state, now_ms=now_ms, result=code, message=message))

    def forget(self, place: str) -> None:
        def without(file: _File) -> _File:
            kept = {name: state for name, state in file.places.items() if name != place}
            return msgspec.structs.replace(file, places=kept)

        self._write(without)

    def _write(self, change: Callable[[_File], _File]) -> _File:
        ensure_private_folder(self._folder)
        with locked(self._folder / LOCK):
            shared = self._shared()
            after = change(self._read_file()) if shared is None else self._change_shared(shared, change)
            write_atomically(self._folder / FILE, msgspec.json.encode(after))
        return after

    def _change_shared(self, shared: SharedState, change: Callable[[_File], _File]) -> _File:
        def changed(text: str) -> str:
            before = _parsed(text.encode(), where=f"text {TEXT!r} of the journal") if text else self._read_file()
            return msgspec.json.encode(change(before)).decode()

        return _parsed(shared.change_text(TEXT, changed).encode(), where=TEXT)


def _parsed(raw: bytes, *, where: str) -> _File:
    try:
        found = decode_json(raw, _File)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise BadPlace(
            f"{where}: {error}", hint="remove this file: Holdfast writes it again at the next backup"
        ) from None
    if found.format != FORMAT:
        raise BadPlace(f"{where} has format {found.format}; this Holdfast reads only format {FORMAT}")
    return found
