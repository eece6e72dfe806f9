"""Facts about an open step: is it quiet, is its key window open, was it ever sent.

Times are measured on the clock that can be trusted for the question. Quiet is counted on the
boot clock from the moment the newest attempt ended: by its own record, or by the claim that took
the task from the session that made it. After a reboot everything of the old boot has ended, so
the time since the boot counts. Key windows are counted on the wall clock, which may have been
set back: the longer of wall time and boot time counts, and when the wall clock is behind the
journal's newest record the window of an attempt of another boot is taken as closed.
"""

from __future__ import annotations

from holdfast.core.clock import Clock
from holdfast.core.effect import Keyed
from holdfast.core.step import StepState
from holdfast.journal.contract import Journal
from holdfast.journal.records import Attempt, Claim, StepView, TaskView
from holdfast.runtime.tool.tool import Tool

CLOCK_TOLERANCE_MS = 5_000


def quiet_in_ms(view: TaskView, step: StepView, *, delay_ms: int, clock: Clock) -> int:
    """How long until nothing of this step can still be under way; 0 when it is quiet."""
    if step.step is None or step.step.maybe_sent == 0:
        return 0
    return max(0, delay_ms - ended_ago_ms(view, step, clock))


def ended_ago_ms(view: TaskView, step: StepView, clock: Clock) -> int:
    """How long ago the newest attempt had ended for certain; 0 while it may be under way."""
    ended = _ended(view, step)
    if ended is None:
        return 0
    boot_id, boot_ms = ended
    return clock.boot_ms() - boot_ms if boot_id == clock.boot_id else clock.boot_ms()


def decidable_in_ms(view: TaskView, step: StepView, clock: Clock) -> int:
    """How long until a person may decide a parked step: what they see before it is quiet is no
    ground for a decision (T10). On the boot clock: a wall clock set forward must not shorten it.
    """
    if step.parked is None:
        return 0
    epoch, boot_ms, quiet_in = step.parked
    claim = view.claims.get(epoch)
    here = claim is not None and claim.boot_id == clock.boot_id
    since = clock.boot_ms() - boot_ms if here else clock.boot_ms()
    return max(0, quiet_in - since)


def in_window(
    view: TaskView, step: StepView, tool: Tool[..., object], journal: Journal, clock: Clock, *, late_ms: int
) -> bool:
    """Whether a re-send under the same key still meets the far end's memory of the first.

    `late_ms`: how long after this the first byte may leave; the request's own way comes on top.
    """
    late_ms += tool.delay_ms
    effect = tool.effect
    if not isinstance(effect, Keyed):
        return False
    if not step.attempts:
        if not step.restored_ms:
            return True
        return journal.now_ms() - step.restored_ms + late_ms < effect.window_s * 1000
    first = step.attempts[0]
    age_ms = journal.now_ms() - first.at_ms
    claim = view.claims.get(first.epoch)
    if claim is not None and claim.boot_id == clock.boot_id:
        age_ms = max(age_ms, clock.boot_ms() - first.boot_ms)
    elif journal.clock_behind_ms > CLOCK_TOLERANCE_MS:
        return False
    return age_ms + late_ms < effect.window_s * 1000


def sent_ago_s(view: TaskView, step: StepView, journal: Journal, clock: Clock) -> float | None:
    """How long ago the step can have been sent first, at most; None where no clock can be trusted.

    A lookup that goes back this far in a far end's list has seen all there can be.
    """
    starts = [step.restored_ms] if step.restored_ms else []
    ages_ms: list[int] = []
    if step.attempts:
        first = step.attempts[0]
        starts.append(first.at_ms)
        claim = view.claims.get(first.epoch)
        if claim is not None and claim.boot_id == clock.boot_id:
            ages_ms.append(clock.boot_ms() - first.boot_ms)
        elif journal.clock_behind_ms > CLOCK_TOLERANCE_MS:
            return None
    elif journal.clock_behind_ms > CLOCK_TOLERANCE_MS:
        return None
    ages_ms += [journal.now_ms() - start for start in starts]
    if not ages_ms or min(ages_ms) < -CLOCK_TOLERANCE_MS:
        return None
    return max(ages_ms) / 1000


def proven_unsent(view: TaskView, step: StepView, journal: Journal) -> bool:
    """Whether the session page of the dead attempt shows that its send had not begun."""
    if step.step is None or step.step.state is not StepState.STARTED or not step.attempts:
        return False
    attempt = step.attempts[-1]
    claim = view.claims.get(attempt.epoch)
    if claim is None:
        return False
    tag = slot_tag(step.effect_key, step.step.attempts)
    return not journal.send_begun(session_id=claim.session_id, boot_id=claim.boot_id, slot=attempt.slot, tag=tag)


def slot_tag(effect_key: bytes, attempt: int) -> bytes:
    """Names one attempt in a session page: enough to tell it from the attempt that used the slot before."""
    return effect_key[:7] + bytes((attempt & 0xFF,))


def attempts_left(step: StepView, tool: Tool[..., object]) -> bool:
    if step.step is None:
        return True
    spared = min(step.spared, tool.spared_max)
    return step.step.attempts - spared < max(tool.attempts, tool.retries + 1)


def _ended(view: TaskView, step: StepView) -> tuple[str, int] | None:
    """The boot and moment at which the newest attempt had ended for certain."""
    if step.ended is not None:
        epoch, boot_ms = step.ended
        claim = view.claims.get(epoch)
        return None if claim is None else (claim.boot_id, boot_ms)
    claim = _superseded(view, step.attempts[-1] if step.attempts else None)
    return None if claim is None else (claim.boot_id, claim.boot_ms)


def _superseded(view: TaskView, attempt: Attempt | None) -> Claim | None:
    """The first claim after the attempt's: by then its session was dead or past its deadline."""
    newest = view.epoch >> 32
    if attempt is None or attempt.epoch >> 32 < newest:
        # The timeline that a restore lost may have sent after the newest attempt we know of.
        later = [epoch for epoch in view.claims if epoch >> 32 == newest]
    else:
        later = [epoch for epoch in view.claims if epoch > attempt.epoch]
    return view.claims[min(later)] if later else None
