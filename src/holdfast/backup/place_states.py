"""What became of the last runs, for each place: place_state.json, of this host alone.

It lies in the instance folder, which is never backed up: a restored agent has verified nothing yet.

Several processes may write (a worker's loop, a command): each change is made under a lock, over
what the file holds at that moment, and replaces it in one rename.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from holdfast.backup.place_state import PlaceState
from holdfast.core.private_files import ensure_private_folder, open_private, write_atomically
from holdfast.errors import BadPlace

FILE = "place_state.json"
LOCK = "place_state.lock"
FORMAT = 1


class _File(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    places: dict[str, PlaceState]


Change = Callable[[PlaceState], PlaceState]


class PlaceStates:
    """The file in this folder; made with the first change."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self) -> dict[str, PlaceState]:
        """Raises BadPlace where the file is not ours: it is never guessed."""
        path = self._folder / FILE
        try:
            fd = open_private(path, os.O_RDONLY)
        except FileNotFoundError:
            return {}
        with os.fdopen(fd, "rb") as file:
            raw = file.read()
        try:
            found = msgspec.json.decode(raw, type=_File)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise BadPlace(
                f"{path}: {error}", hint="remove it: the next runs and test restores write it anew"
            ) from None
        if found.format != FORMAT:
            raise BadPlace(f"{path} has format {found.format}; this Holdfast knows {FORMAT}")
        return found.places

    def of(self, place: str) -> PlaceState:
        return self.read().get(place, PlaceState())

    def change(self, place: str, change: Change) -> PlaceState:
        return self._change(place, change) or PlaceState()

    def forget(self, place: str) -> None:
        self._change(place, None)

    def _change(self, place: str, change: Change | None) -> PlaceState | None:
        ensure_private_folder(self._folder)
        lock = open_private(self._folder / LOCK, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            places = self.read()
            after = None if change is None else change(places.get(place, PlaceState()))
            kept = {name: state for name, state in places.items() if name != place}
            if after is not None:
                kept[place] = after
            raw = msgspec.json.encode(_File(format=FORMAT, places=kept))
            write_atomically(self._folder / FILE, raw)
            return after
        finally:
            os.close(lock)
