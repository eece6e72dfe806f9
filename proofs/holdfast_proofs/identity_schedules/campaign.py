"""Many schedules in a row: what broke, and what was tried how often."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from holdfast_proofs.identity_schedules.places import Broken
from holdfast_proofs.identity_schedules.weakened import weakened
from holdfast_proofs.identity_schedules.world import World


@dataclass
class Campaign:
    schedules: int = 0
    cpu_s: float = 0.0
    acts: Counter[str] = field(default_factory=Counter[str])
    broken: dict[int, str] = field(default_factory=dict[int, str])  # by seed

    def to_json(self) -> dict[str, object]:
        return {
            "schedules": self.schedules,
            "cpu_s": round(self.cpu_s, 1),
            "acts": dict(sorted(self.acts.items())),
            "broken": {str(seed): why for seed, why in self.broken.items()},
        }


def run(seeds: range, tell: Callable[[int], None] = lambda _: None) -> Campaign:
    campaign = Campaign()
    began = time.process_time()
    for seed in seeds:
        why = find_breach(seed, campaign.acts)
        campaign.schedules += 1
        if why is not None:
            campaign.broken[seed] = why
        tell(campaign.schedules)
    campaign.cpu_s = time.process_time() - began
    return campaign


def find_breach(seed: int, acts: Counter[str] | None = None) -> str | None:
    """What breaks in this schedule; None where everything holds."""
    try:
        world = World(seed)
        world.run()
    except Broken as broken:
        return str(broken)
    if acts is not None:
        acts.update(world.seen)
    return None


def find_weakness(name: str, *, schedules_max: int) -> tuple[int, str] | None:
    """The first schedule that notices a rule that was taken out, and what it says."""
    with weakened(name):
        for seed in range(schedules_max):
            why = find_breach(seed)
            if why is not None:
                return seed, why
    return None
