"""What became of the last runs, for each place: place_state.json, of this host alone.

It is in the instance folder, which is never backed up: a restored agent has verified nothing yet.

Several processes may write (a worker's loop, a command): each change is made under a lock, over
what the file holds at that moment, and replaces it in one rename.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from holdfast.backup.places.place_state import OK, PlaceState, tried
from holdfast.errors import BadPlace, HoldfastError
from holdfast.host.private_files import ensure_private_folder, locked, read_private, write_atomically

FILE = "place_state.json"
LOCK = "place_state.lock"
FORMAT = 1


class _File(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    places: dict[str, PlaceState]
    warning: str = ""  # about the agent's folder, not sent yet


Change = Callable[[PlaceState], PlaceState]


class PlaceStates:
    """The file in this folder; made with the first change."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self) -> dict[str, PlaceState]:
        """Raises BadPlace where the file is not ours: it is never guessed."""
        return self._read().places

    def warning(self) -> str:
        return self._read().warning

    def warn(self, text: str) -> None:
        """Keep a warning about the agent's folder until it was sent; an empty text removes it."""
        self._write(lambda file: msgspec.structs.replace(file, warning=text))

    def _read(self) -> _File:
        path = self._folder / FILE
        try:
            found = msgspec.json.decode(read_private(path, -1), type=_File)
        except FileNotFoundError:
            return _File(format=FORMAT, places={})
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise BadPlace(
                f"{path}: {error}", hint="remove this file: Holdfast writes it again at the next backup"
            ) from None
        if found.format != FORMAT:
            raise BadPlace(f"{path} has format {found.format}; this Holdfast reads only format {FORMAT}")
        return found

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
            after = change(self._read())
            write_atomically(self._folder / FILE, msgspec.json.encode(after))
        return after
