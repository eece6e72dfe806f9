"""The keys of a copy that was restored with a rescue key: they open its journal, and do nothing else.

It stands where a whole `KeyRing` does. It has neither `k_effect` nor the journal keys themselves, only the two keys
that are derived from each of them for payloads: so no effect key can be computed, and the secrets of tools, which are
sealed by a third derived key, stay closed. Whatever asks for more gets RescuedCopy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NoReturn

from holdfast.core.served import Served
from holdfast.errors import KeysWrong, RescuedCopy


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingRing:
    """core.served.ServingRing for reading alone."""

    sealing: Mapping[tuple[int, bytes], bytes] = field(repr=False)  # by journal key and what it is derived for
    digest_key: bytes = field(repr=False)  # of blobs
    key_check: bytes  # tells the journal that these keys are its own

    def sealing_key(self, key_id: int, info: bytes) -> bytes:
        """Raises KeysWrong for a key that is not held."""
        found = self.sealing.get((key_id, info))
        if found is None:
            raise KeysWrong(f"the rescue key does not open what journal key {key_id} sealed")
        return found

    @property
    def k_effect(self) -> bytes:
        refuse()

    @property
    def current_journal_key(self) -> int:
        refuse()

    def journal_key(self, key_id: int) -> bytes:
        refuse()

    @property
    def journals(self) -> Served:
        return ()

    def change_journals(self, decide: Callable[[Served], Served]) -> None:
        refuse()


def refuse() -> NoReturn:
    raise only_read()


def only_read() -> RescuedCopy:
    return RescuedCopy("this folder was restored with a rescue key: Holdfast only reads it")
