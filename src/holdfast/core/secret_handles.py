"""Handles of secrets, and the swap that puts them in the place of values; redaction for logs and screens.

**Handles.** `secret://name` in a value means a secret: as the whole text, or inside one (`Bearer secret://billing`). It
ends at the first character that cannot be part of a name. Only texts that are values are looked at, never keys.

**The swap.** Known secret values, in whatever form a far end echoes them, become handles again. Forms: as it is; base64
and base64url, whole and at each of the three places it can have inside a longer text; URL-encoded; hexadecimal; escaped
as JSON (once and twice), as Python's repr and as HTML. A text that ends in the first half (or more, 8 characters at
least) of a form was cut there, and its end is swapped too. Swapped text holds no form: a second swap changes nothing.

Most texts hold none. A first look costs one pass in C: eight sets of characters in a row, those that any form has at
its first eight places. What passes is looked up in a table of the forms' beginnings. With few secrets almost nothing
passes; with a hundred the sets hold nearly every character, and each place costs a look into the table.

**Redaction.** What a person is shown passes `safe`: known secrets by the swap, unknown ones by how they look. By how
they look only there, never in results: it would eat charge ids, and a replay would see something else than the first
run.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    from holdfast.core.values import Json


SCHEME = "secret://"
NAME_CHARS_MAX = 63

_NAME = re.compile(rf"[a-z0-9][a-z0-9_-]{{0,{NAME_CHARS_MAX - 1}}}")
_HANDLE = re.compile(SCHEME + r"([A-Za-z0-9_-]+)")


def handle(name: str) -> str:
    return SCHEME + name


def is_name(text: str) -> bool:
    """Whether a secret may be called that: what a handle ends at cannot be in it."""
    return _NAME.fullmatch(text) is not None


def find_whole(value: Json) -> str | None:
    """The name, where the value is a handle and nothing else."""
    found = _HANDLE.fullmatch(value) if isinstance(value, str) else None
    return None if found is None else found[1]


def names_in(value: Json) -> Iterator[str]:
    """Every name that a text of this value asks for."""
    if isinstance(value, str):
        if SCHEME in value:
            for found in _HANDLE.finditer(value):
                yield found[1]
    elif isinstance(value, dict):
        for item in cast("dict[str, object]", value).values():
            yield from names_in(item)
    elif isinstance(value, list):
        for item in cast("list[object]", value):
            yield from names_in(item)


def resolved(value: Json, secrets: Mapping[str, str]) -> Json:
    """The value with each handle of these names replaced by its secret; other ones stay."""
    return mapped(value, lambda text: _HANDLE.sub(lambda found: secrets.get(found[1], found[0]), text))


def mapped(value: Json, change: Callable[[str], str]) -> Json:
    """The value with every text that is a value changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        items = cast("dict[str, object]", value)
        return {key: mapped(item, change) for key, item in items.items()}
    if isinstance(value, list):
        return [mapped(item, change) for item in cast("list[object]", value)]
    return value


VALUE_CHARS_MIN = 8  # shorter ones would be found in innocent text


class Matcher:
    """Swaps a fixed set of values. `secrets`: pairs of name and value, several per name."""

    __slots__ = ("_by_first", "_encode", "_first", "_forms", "_longest", "_numbers")

    def __init__(self, secrets: Iterable[tuple[str, str]]) -> None:
        from holdfast.core.values import encode_unchecked

        self._encode = encode_unchecked
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
        """Of a text that is still coming: its beginning, swapped, and an end that may begin a form."""
        held = self._open_at(text)
        for start, end, _ in self._found(text):
            if start < held < end:
                held = start
        return self.text(text[:held]), text[held:]

    def _open_at(self, text: str) -> int:
        """The first place from which the text, with more to come, could be one of the forms."""
        for at in range(max(0, len(text) - self._longest + 1), len(text)):
            if any(form.startswith(text[at:]) for form in self._by_first.get(text[at], ())):
                return at
        return len(text)

    def value(self, value: Json) -> Json:
        """The JSON value with every form swapped, in keys and texts; itself where there is none."""
        return self._walked(value) if self.may_hold(value) else value

    def may_hold(self, value: Json) -> bool:
        """Whether it is worth a walk. One pass over its JSON, no false no."""
        if isinstance(value, str):
            return self._first.search(value) is not None
        if not self._forms:
            return False
        return self._first.search(self._encode(value).decode()) is not None

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
        half = max(VALUE_CHARS_MIN, (len(form) + 1) // 2)
        if len(text) - at >= half and form.startswith(text[at:]):
            return len(text), name
    return None


def forms_of(value: str) -> set[str]:
    """Every form in which this value is looked for."""
    import html  # these here: most processes know no secret, and every command imports this module
    import json
    from urllib.parse import quote, quote_plus

    raw = value.encode()
    found = _base64_forms(raw)
    found |= {value, raw.hex(), raw.hex().upper(), html.escape(value), repr(value)[1:-1], repr(raw)[2:-1]}
    for safe in ("", "/"):
        for spelled in (quote(value, safe=safe), quote_plus(value, safe=safe)):
            found |= {spelled, re.sub(r"%[0-9A-F]{2}", lambda escape: escape[0].lower(), spelled)}
    for once in (json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]):
        found |= {once, json.dumps(once, ensure_ascii=False)[1:-1]}
    return {form for form in found if len(form) >= VALUE_CHARS_MIN}


def _base64_forms(raw: bytes) -> set[str]:
    import base64

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


def _first_look(forms: Collection[str]) -> str:
    """Eight sets in a row; also of the forms as they are inside JSON."""
    if not forms:
        return r"(?!)"
    import json

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


REDACTED = "[redacted]"
DEPTH_MAX = 20

_LOOKS = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)"
    r"|\beyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}"  # JWT
    r"|\b(?:sk|rk|pk)_(?:live|test)_[A-Za-z0-9]{16,}"  # Stripe
    r"|\bwhsec_[A-Za-z0-9+/=]{16,}"
    r"|\bsk-(?:ant-|proj-|or-)?[A-Za-z0-9_-]{20,}"  # model providers
    r"|\b(?:ghp|gho|ghu|ghs|ghr)_[A-Za-z0-9]{30,}|\bgithub_pat_[A-Za-z0-9_]{30,}"
    r"|\bglpat-[A-Za-z0-9_-]{16,}"
    r"|\bxox[abeprs]-[A-Za-z0-9-]{10,}"  # Slack
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"  # AWS
    r"|\bAIza[A-Za-z0-9_-]{30,}"  # Google
    r"|\bAGE-SECRET-KEY-1[A-Z0-9]{50,}"
    r"|\bSG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}",  # SendGrid
    re.DOTALL,
)


class Knower(Protocol):
    def text(self, text: str) -> str: ...


_knowers: weakref.WeakSet[Knower] = weakref.WeakSet()


def register(knower: Knower) -> None:
    """Let what is shown in this process pass this one's swap, for as long as it lives."""
    _knowers.add(knower)


def safe(text: str) -> str:
    """The text as a person may see it."""
    for knower in _knowers:
        text = knower.text(text)
    return _LOOKS.sub(REDACTED, text)


def safe_value(value: object, depth: int = 0) -> object:
    """The same for every text inside a value."""
    if isinstance(value, str):
        return safe(value)
    if depth < DEPTH_MAX and isinstance(value, dict):
        items = cast("dict[object, object]", value)
        return {key: safe_value(item, depth + 1) for key, item in items.items()}
    if depth < DEPTH_MAX and isinstance(value, (list, tuple)):
        return [safe_value(item, depth + 1) for item in cast("list[object]", value)]
    return value
