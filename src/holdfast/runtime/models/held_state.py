"""State that the provider's servers would keep for us, found in a request before it is sent.

Such state is in no checkpoint, no backup and no other region: a resumed task may not find it. So a request that leans
on it is refused, unless the caller names the surface; then every reply says so, and the register of surfaces can list
it. Only the wire forms' own parts can lean on it (`extra`, opaque parts); our own form has no words for it. A
provider's cache of prefixes is not state: losing it costs tokens, nothing else.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from typing import cast

import msgspec

from holdfast.errors import BadInput, StateHeldElsewhere
from holdfast.runtime.models.request import Object, Request

SURFACES = {
    "stored-reply": ("store", "previous_response_id", "background"),
    "thread": ("thread", "thread_id", "conversation", "assistant_id"),
    "uploaded-file": ("file_id", "file_ids", "vector_store_ids", "attachments"),
    "container": ("container", "container_id"),
    "stored-prompt": ("prompt", "prompt_id"),
}
# Below the top level a plain word may be any name (a schema's property, say); an id is an id.
_DEEP = ("file_id", "file_ids", "vector_store_ids", "container_id", "thread_id", "prompt_id")
_NOT_OURS = ("response_format", "output_config", "json_schema", "schema", "input")  # people's names
_TYPES = {
    "container_upload": "container",
    "code_execution_tool_result": "container",
    "bash_code_execution_tool_result": "container",
    "text_editor_code_execution_tool_result": "container",
}
_BY_NAME = {name: surface for surface, names in SURFACES.items() for name in names}


class HeldState(msgspec.Struct, frozen=True, kw_only=True):
    surface: str
    place: str


def find_held_state(request: Request) -> tuple[HeldState, ...]:
    """Every place of the request that leans on state held by the provider."""
    extra = cast(Object, request.settings.get("extra", {}))
    found = [held for wire, more in extra.items() for held in _find(more, f"settings.extra.{wire}", _BY_NAME)]
    for i, message in enumerate(request.messages):
        if message["role"] != "assistant":
            continue
        for j, part in enumerate(cast("list[Object]", message["parts"])):
            if part["type"] == "opaque":
                found += _find(part["value"], f"messages[{i}].parts[{j}].value", _DEEP)
    return tuple(found)


def check_held_state(request: Request, *, allowed: Iterable[str]) -> tuple[str, ...]:
    """The surfaces the request leans on, sorted. Raises StateHeldElsewhere for one not allowed."""
    permitted = frozenset(allowed)
    found = find_held_state(request)
    for held in found:
        if held.surface not in permitted:
            raise StateHeldElsewhere(f"{held.place} depends on state that the provider keeps ({held.surface})")
    return tuple(sorted({held.surface for held in found}))


def checked_surfaces(names: Iterable[str]) -> frozenset[str]:
    """The surfaces that a caller allows. Raises BadInput for a word that names none."""
    kept = frozenset(names)
    if unknown := sorted(kept - SURFACES.keys()):
        raise BadInput(f"allow_state: {unknown[0]!r} is not one of {', '.join(SURFACES)}")
    return kept


def _find(value: object, place: str, names: Container[str]) -> Iterator[HeldState]:
    if isinstance(value, dict):
        items = cast(Object, value)
        if str(items.get("type")) in _TYPES:
            yield HeldState(surface=_TYPES[str(items["type"])], place=f"{place}.type")
        for name, item in items.items():
            if name in names and item not in (None, False, "", [], {}):
                yield HeldState(surface=_BY_NAME[name], place=f"{place}.{name}")
            elif name not in _NOT_OURS:
                yield from _find(item, f"{place}.{name}", _DEEP)
    elif isinstance(value, list):
        for i, item in enumerate(cast("list[object]", value)):
            yield from _find(item, f"{place}[{i}]", _DEEP)
