"""The swap: known secret values, in whatever form a far end echoes them, become handles again.

Forms: as it is; base64 and base64url, whole and at each of the three places it can have inside a
longer text; URL-encoded; hexadecimal; escaped as JSON (once and twice), as Python's repr and as
HTML. A text that ends in the first half (or more, 8 characters at least) of a form was cut there,
and its end is swapped too. Swapped text holds no form, so a second swap changes nothing.

Most texts hold none. A first look costs one pass in C: eight sets of characters in a row, those
that any form has at its first eight places. What passes is looked up in a table of the forms'
beginnings. With few secrets almost nothing passes; with a hundred the sets hold nearly every
character, and each place costs a look into the table.
"""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Collection, Iterable, Iterator
from typing import cast
from urllib.parse import quote, quote_plus

from holdfast.core.handles import handle
from holdfast.core.values import Json, encode_unchecked

VALUE_CHARS_MIN = 8  # shorter ones would be found in innocent text


class Matcher:
    """Swaps a fixed set of values. `secrets`: pairs of name and value, several per name."""

    __slots__ = ("_by_first", "_first", "_forms", "_longest", "_numbers")

    def __init__(self, secrets: Iterable[tuple[str, str]]) -> None:
        handles: dict[str, str] = {}
        self._numbers: dict[str, str] = {}
        for name, value in secrets:
            for form in forms_of(value):
                handles.setdefault(form, handle(name))
            if value.isdigit():
                self._numbers.setdefault(value, handle(name))
        self._longest = max(map(len, handles), default=0)
        self._by_first: dict[str, list[str]] = {}
        for form in handles:
            self._by_first.setdefault(form[0], []).append(form)
        self._first = re.compile(_first_look(handles))
        # Longest first: of two that begin at the same place the longer one is meant.
        self._forms: dict[str, list[tuple[str, str]]] = {}
        for form in sorted(handles, key=len, reverse=True):
            self._forms.setdefault(form[:VALUE_CHARS_MIN], []).append((form, handles[form]))

    def __bool__(self) -> bool:
        return bool(self._forms)

    def text(self, text: str) -> str:
        """The text with every form swapped."""
        kept: list[str] = []
        at = 0
        for start, end, name in self._found(text):
            kept += (text[at:start], name)
            at = end
        return "".join((*kept, text[at:])) if kept else text

    def split(self, text: str) -> tuple[str, str]:
        """Of a text that goes on: its beginning, swapped, and an end that may begin a form."""
        held = self._open_at(text)
        for start, end, _ in self._found(text):
            if start < held < end:
                held = start
        return self.text(text[:held]), text[held:]

    def _open_at(self, text: str) -> int:
        """The first place from which the text, if it went on, could be one of the forms."""
        for at in range(max(0, len(text) - self._longest + 1), len(text)):
            if any(form.startswith(text[at:]) for form in self._by_first.get(text[at], ())):
                return at
        return len(text)

    def value(self, value: Json) -> Json:
        """The JSON value with every form swapped, in keys and texts; itself where there is none."""
        if not self.may_hold(value):
            return value
        return self._walked(value)

    def may_hold(self, value: Json) -> bool:
        """Whether it is worth a walk. One pass over its JSON, no false no."""
        if isinstance(value, str):
            return self._first.search(value) is not None
        if not self._forms:
            return False
        return self._first.search(encode_unchecked(value).decode()) is not None

    def find(self, value: Json) -> str | None:
        """The handle of a value that is held here in some form."""
        if not self.may_hold(value):
            return None
        if isinstance(value, str):
            return next((name for _, _, name in self._found(value)), None)
        if isinstance(value, dict):
            items = cast("dict[str, object]", value)
            inner: list[object] = [*items.keys(), *items.values()]
        elif isinstance(value, list):
            inner = cast("list[object]", value)
        else:
            return self._numbers.get(str(value))
        return next((one for item in inner if (one := self.find(item)) is not None), None)

    def _walked(self, value: Json) -> Json:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            kept: dict[str, object] = {}
            for key, item in cast("dict[str, object]", value).items():
                kept[_free(self.text(key), kept)] = self._walked(item)
            return kept
        if isinstance(value, list):
            return [self._walked(item) for item in cast("list[object]", value)]
        if type(value) is int and self._numbers:
            return self._numbers.get(str(value), value)
        return value

    def _found(self, text: str) -> Iterator[tuple[int, int, str]]:
        """Where a form begins and ends, and its handle; also one that the text's end cuts off."""
        look = self._first.search
        place = look(text)
        while place is not None:
            at = place.start()
            forms = self._forms.get(place[0])
            hit = None if forms is None else _hit(text, at, forms)
            if hit is None:
                place = look(text, at + 1)
            else:
                yield at, hit[0], hit[1]
                place = look(text, hit[0])


def _hit(text: str, at: int, forms: list[tuple[str, str]]) -> tuple[int, str] | None:
    for form, name in forms:
        if text.startswith(form, at):
            return at + len(form), name
    for form, name in forms:
        if len(text) - at >= _half(form) and form.startswith(text[at:]):
            return len(text), name
    return None


def forms_of(value: str) -> set[str]:
    """Every form in which this value is looked for."""
    raw = value.encode()
    found = {
        value,
        raw.hex(),
        raw.hex().upper(),
        html.escape(value),
        repr(value)[1:-1],
        repr(raw)[2:-1],
        *_base64_forms(raw),
    }
    for safe in ("", "/"):
        for spelled in (quote(value, safe=safe), quote_plus(value, safe=safe)):
            found |= {spelled, _lower_escapes(spelled)}
    for once in (json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]):
        found |= {once, json.dumps(once, ensure_ascii=False)[1:-1]}
    return {form for form in found if len(form) >= VALUE_CHARS_MIN}


def _base64_forms(raw: bytes) -> set[str]:
    found: set[str] = set()
    for encode in (base64.standard_b64encode, base64.urlsafe_b64encode):
        whole = encode(raw).decode()
        found |= {whole, whole.rstrip("=")}
        for before in range(3):
            # Inside a longer text the first and last letters also depend on the neighbours.
            text = encode(b"\0" * before + raw).decode()
            first = (0, 2, 3)[before]
            found.add(text[first : (before + len(raw)) * 8 // 6])
    return found


def _lower_escapes(text: str) -> str:
    return re.sub(r"%[0-9A-F]{2}", lambda found: found[0].lower(), text)


def _half(form: str) -> int:
    return max(VALUE_CHARS_MIN, (len(form) + 1) // 2)


def _first_look(forms: Collection[str]) -> str:
    """Eight sets in a row; also of the forms as they stand inside JSON."""
    if not forms:
        return r"(?!)"
    spelled = {*forms, *(json.dumps(form, ensure_ascii=False)[1:-1] for form in forms)}
    places = [{form[at] for form in spelled} for at in range(VALUE_CHARS_MIN)]
    return "".join(f"[{''.join(map(re.escape, sorted(chars)))}]" for chars in places)


def _free(key: str, taken: dict[str, object]) -> str:
    """Two keys that became one handle: neither may be lost."""
    number = 1
    found = key
    while found in taken:
        number += 1
        found = f"{key}#{number}"
    return found
