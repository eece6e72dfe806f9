"""An engine of our own, for Pythons that atheris has no wheel for: mutations by a seed.

It does not see which branches an input takes. It keeps inputs that end in a way not seen before,
and goes on from those.
"""

from __future__ import annotations

import random

from holdfast_proofs.fuzz.targets import Target
from holdfast_proofs.fuzz.watch import Watch

KEPT_MAX = 500
CHANGES_MAX = 6


def run_mutations(target: Target, watch: Watch, *, runs: int, seed: int) -> None:
    chance = random.Random(seed)
    kept = list(target.seeds)
    endings: set[str] = set()
    for raw in kept[:runs]:
        endings.add(watch.run(raw))
    while watch.executions < runs:
        raw = mutated(chance.choice(kept), target, chance)
        ending = watch.run(raw)
        if ending not in endings or (chance.random() < 0.001 and len(kept) < KEPT_MAX):
            endings.add(ending)
            kept.append(raw)


def mutated(raw: bytes, target: Target, chance: random.Random) -> bytes:
    made = bytearray(raw)
    for _ in range(chance.randint(1, CHANGES_MAX)):
        _change(made, target, chance)
    return bytes(made[: target.bytes_max])


def _change(made: bytearray, target: Target, chance: random.Random) -> None:
    at = chance.randint(0, len(made))
    match chance.randint(0, 6):
        case 0 if made:
            made[at % len(made)] = chance.randint(0, 255)
        case 1 if made:
            made[at % len(made)] ^= 1 << chance.randint(0, 7)
        case 2:
            made[at:at] = chance.randbytes(chance.randint(1, 8))
        case 3:
            del made[at : at + chance.randint(1, 16)]
        case 4 if target.words:
            made[at:at] = chance.choice(target.words)
        case 5:
            other = chance.choice(target.seeds)
            start = chance.randint(0, len(other))
            made[at:] = other[start:]
        case _:
            made[at:at] = made[at : at + chance.randint(1, 64)]
