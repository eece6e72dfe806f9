"""What far ends count: how often each thing was done, read from whatever a test has, and compared."""

from __future__ import annotations

import asyncio
import inspect
import json
import urllib.request
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from itertools import zip_longest

import msgspec

from holdfast.core.decoding import convert
from holdfast.downstream.ledger import Page
from holdfast.downstream.process import BlockingFarEnd, FarEnd
from holdfast.errors import BadInput

URL_S = 30.0
NAME_CHARS = 120

Counts = Mapping[str, int]
FarEndCounts = FarEnd | BlockingFarEnd | str | Callable[[], Counts | Awaitable[Counts]]


async def read_counts(end: FarEndCounts) -> Counts:
    """How often each thing was done so far."""
    found: object
    if isinstance(end, BlockingFarEnd):
        end = end.far_end
    if isinstance(end, FarEnd):
        await end.wait_idle()
        return counts_of(await end.ledger())
    if isinstance(end, str):
        found = json.loads(await asyncio.to_thread(_get, end))
    else:
        found = end()
        if inspect.isawaitable(found):
            found = await found
    try:
        return convert(found, dict[str, int])
    except msgspec.ValidationError as error:
        raise BadInput(
            f"the far end does not say how often each thing was done: {error}",
            hint='it must be a mapping such as {"order 17": 1}',
        ) from None


def _get(url: str) -> bytes:
    if not url.startswith(("http://", "https://")):
        raise BadInput(f"{url!r} is not the address of a far end", hint="give an http:// or https:// URL")
    with urllib.request.urlopen(url, timeout=URL_S) as answer:
        return answer.read()


def counts_of(page: Page) -> Counts:
    """What a service of `holdfast.downstream` did, by step where a request names it, else by what was sent."""
    names = [
        f"step {one.base}" if one.base else f"{one.resource or page.kind} {json.dumps(one.body, sort_keys=True)}"
        for one in page.effects
    ]
    if page.kind == "idempotent":  # a repeat that changes nothing is none
        return Counter({f"{name} {one.body_sha256[:8]}" for name, one in zip(names, page.effects, strict=True)})
    return Counter(name[:NAME_CHARS] for name in names)


def compare(expected: Counts, found: Counts) -> tuple[dict[str, int], dict[str, int]]:
    """What was done too often, and what is missing. A name may differ from run to run (an effect key): names that only
    one side has are compared by their counts alone."""
    duplicates: Counter[str] = Counter()
    lost: Counter[str] = Counter()
    for name in expected.keys() & found.keys():
        _note(name, expected[name], name, found[name], duplicates, lost)
    wanted = _sorted((name, count) for name, count in expected.items() if name not in found)
    others = _sorted((name, count) for name, count in found.items() if name not in expected)
    for want, other in zip_longest(wanted, others, fillvalue=("", 0)):
        _note(want[0], want[1], other[0], other[1], duplicates, lost)
    return dict(duplicates), dict(lost)


def _note(
    want: str, wanted: int, name: str, found: int, duplicates: Counter[str], lost: Counter[str]
) -> None:  # the two names differ only where both sides have one that the other has not
    if found > wanted:
        duplicates[name] += found - wanted
    elif wanted > found:
        lost[want or name] += wanted - found


def _sorted(counts: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    return sorted(((name, count) for name, count in counts if count > 0), key=lambda one: (-one[1], one[0]))
