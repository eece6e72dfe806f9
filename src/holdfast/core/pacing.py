"""How often an agent is looked at while nothing happens: many agents in one process must not cost many times as much.

An agent that has a process to itself is looked at as each loop likes. Beside others, what is found in files is looked
for 40 times a second for all of them together. What is found in the journal is looked for after a change; each renewal
of the lease is a look for changes. Leases are renewed at the same ticks of the process's clock, a part at each.
"""

from __future__ import annotations

from dataclasses import dataclass

LOOK_SHARE_S = 0.025
IDLE_S = 120.0
SELDOM_S = 50.0  # within a minute, a person hears that a standby is gone
TICKS_PER_RENEWAL = 6


@dataclass(frozen=True, slots=True)
class Pacing:
    agents: int = 1  # that this process serves

    def look_s(self, usual_s: float) -> float:
        """Between two looks at files."""
        return usual_s if self.agents == 1 else max(usual_s, self.agents * LOOK_SHARE_S)

    def idle_s(self, usual_s: float) -> float:
        """Between two looks at a journal that has not changed."""
        return usual_s if self.agents == 1 else IDLE_S

    def seldom_s(self, usual_s: float) -> float:
        """Between two looks at what changes without a commit."""
        return usual_s if self.agents == 1 else SELDOM_S

    def renew_in_s(self, every_s: float, *, now_s: float) -> float:
        """Until the next renewal of a lease."""
        if self.agents == 1:
            return every_s
        tick_s = every_s / TICKS_PER_RENEWAL
        return (now_s + every_s) // tick_s * tick_s - now_s


ALONE = Pacing()
