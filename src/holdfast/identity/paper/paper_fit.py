"""Whether a paper still has its power: the log decides, by the digests that it names.

Every record of the recovery tier commits to the key of the next recovery. A paper fits where the
newest of them names a key that is derived from it; it was replaced where only an older one does.
Nothing is signed and nothing is shown: whoever compares learns only what the log already says.

A paper outlives its own recoveries: the recovery of generation g commits to key g+1 of the same
words, so that the same sheet fits again. Only a recovery that commits to other words ends it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from holdfast.identity.log.log_state import Log
from holdfast.identity.paper.derive import PaperKeys
from holdfast.identity.records.encodings import key_digest
from holdfast.identity.records.records import Inception, Recovery


class Fit(StrEnum):
    CURRENT = "current"  # it can recover the agent
    REPLACED = "replaced"  # it could, before a recovery named other words
    RETIRED = "retired"  # the identity was ended; no paper has a say any more
    OTHER = "other"  # never named by this log


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitting:
    fit: Fit
    generation: int = 0  # the one it recovers to; of a replaced one: whose record replaced it


def fitting(keys: PaperKeys, log: Log) -> Fitting:
    """What these keys are to this agent."""
    named = [_names(keys, log, g) for g in range(len(log.generations))]
    if True not in named:
        return Fitting(fit=Fit.OTHER)
    if log.recovery is None:
        return Fitting(fit=Fit.RETIRED, generation=len(log.generations) - 1)
    if named[-1]:
        return Fitting(fit=Fit.CURRENT, generation=len(log.generations))
    last = max(g for g, one in enumerate(named) if one)
    return Fitting(fit=Fit.REPLACED, generation=last + 1)


def _names(keys: PaperKeys, log: Log, g: int) -> bool:
    record = log.generations[g].tier.record
    if not isinstance(record, Inception | Recovery):
        return False
    return key_digest(keys.recovery(g + 1).public) in record.rec.members
