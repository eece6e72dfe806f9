"""Facts about a step: is it quiet, is its key window open, was it ever sent; and what a closed one means to the code.

Times are measured on the clock that can be trusted for the question. Quiet is counted on the boot clock from the moment
the newest attempt ended: by its own record, or by the claim that took the task from the session that made it. After a
reboot everything of the old boot has ended, so the time since the boot counts. Where several hosts share the journal,
another boot may be another machine's, whose clock we cannot read: there the time since this machine claimed the task
counts, or the journal's own time for those who hold no claim. Key windows are counted on the wall
clock, which may have been set back: the longer of wall time and boot time counts, and when the wall clock is behind the
journal's newest record the window of an attempt of another boot is taken as closed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

from msgspec import UNSET

from holdfast import errors
from holdfast.core.clock import CLOCK_TOLERANCE_MS, Clock
from holdfast.core.effect import CLASSES, Effect, Keyed
from holdfast.core.ids import effect_key_from_bytes
from holdfast.core.rest import Diverged, Suspended
from holdfast.core.step import StepState
from holdfast.core.values import copied
from holdfast.journal.bodies import DecisionGiven
from holdfast.journal.contract import InboxItem, InboxKind, Journal
from holdfast.journal.records import Attempt, Body, Claim, StepView, TaskView
from holdfast.runtime.tool.started import A_PROCESS
from holdfast.runtime.tool.tool import Tool

BACKOFF_S = 0.2
BACKOFF_S_MAX = 60.0
DIFFERENCE_CHARS_MAX = 200  # of each value


def quiet_in_ms(view: TaskView, step: StepView, *, delay_ms: int, clock: Clock) -> int:
    """How long until nothing of this step can still be under way; 0 when it is quiet."""
    if step.step is None or step.step.maybe_sent == 0:
        return 0
    return max(0, delay_ms - ended_ago_ms(view, step, clock))


def ended_ago_ms(view: TaskView, step: StepView, clock: Clock) -> int:
    """How long ago the newest attempt had ended for certain; 0 while it may be under way."""
    ended = _ended(view, step)
    return 0 if ended is None else _since_ms(view, *ended, clock)


def _since_ms(view: TaskView, claim: Claim, boot_ms: int, clock: Clock) -> int:
    """How long ago that moment under the claim was, at least."""
    if claim.boot_id == clock.boot_id:
        return clock.boot_ms() - boot_ms
    if not claim.host_id:
        return clock.boot_ms()
    here = [one.boot_ms for one in view.claims.values() if one.epoch > claim.epoch and one.boot_id == clock.boot_id]
    return clock.boot_ms() - min(here) if here else 0


def decidable_in_ms(view: TaskView, step: StepView, clock: Clock, *, now_ms: int) -> int:
    """How long until a person may decide a parked step: what they see before it is quiet is no
    ground for a decision (T10). On the boot clock: a wall clock set forward must not shorten it. A person may be at a
    host that never had the task: there the journal's time counts, `now_ms`.
    """
    if step.parked is None:
        return 0
    epoch, boot_ms, quiet_in = step.parked
    claim = view.claims.get(epoch)
    if claim is not None and claim.host_id and claim.boot_id != clock.boot_id:
        return max(0, step.not_before_ms - now_ms)
    since = clock.boot_ms() - boot_ms if claim is not None and claim.boot_id == clock.boot_id else clock.boot_ms()
    return max(0, quiet_in - since)


def in_window(
    view: TaskView, step: StepView, tool: Tool[..., object], journal: Journal, clock: Clock, *, late_ms: int
) -> bool:
    """Whether a re-send under the same key still meets the far end's memory of the first. `late_ms`: how long after
    this the first byte may leave; the request's own way comes on top."""
    late_ms += tool.delay_ms
    effect = tool.effect
    if not isinstance(effect, Keyed):
        return False
    first = step.attempts[0] if step.attempts else None
    starts = [*([step.lost_ms] if step.lost_ms else []), *([first.at_ms] if first else [])]
    if not starts:
        return True
    age_ms = journal.now_ms() - min(starts)
    if first and _is_of_this_boot(view, first.epoch, clock):
        age_ms = max(age_ms, clock.boot_ms() - first.boot_ms)
    elif journal.clock_behind_ms > CLOCK_TOLERANCE_MS:
        return False
    return age_ms + late_ms < effect.window_s * 1000


def sent_ago_s(view: TaskView, step: StepView, journal: Journal, clock: Clock) -> float | None:
    """How long ago the step can have been sent first, at most; None where no clock can be trusted. A lookup that goes
    back this far in a far end's list has seen all there can be."""
    first = step.attempts[0] if step.attempts else None
    starts = [*([step.restored_ms] if step.restored_ms else []), *([first.at_ms] if first else [])]
    ages_ms = [journal.now_ms() - start for start in starts]
    if first and _is_of_this_boot(view, first.epoch, clock):
        ages_ms.append(clock.boot_ms() - first.boot_ms)
    elif journal.clock_behind_ms > CLOCK_TOLERANCE_MS:
        return None
    if not ages_ms or min(ages_ms) < -CLOCK_TOLERANCE_MS:
        return None
    return max(ages_ms) / 1000


def _is_of_this_boot(view: TaskView, epoch: int, clock: Clock) -> bool:
    claim = view.claims.get(epoch)
    return claim is not None and claim.boot_id == clock.boot_id


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


def left_behind(view: TaskView, step: StepView, journal: Journal, *, in_child: bool) -> str:
    """What the newest attempt started and what may still run, in words; empty where nothing may. By the record of its
    end, or by the session page of a worker that died in it."""
    if step.step is None or not step.attempts:
        return ""
    if step.ended is not None:
        return step.failure.left
    attempt = step.attempts[-1]
    claim = view.claims.get(attempt.epoch)
    if claim is None or attempt.epoch >= view.epoch:
        return ""
    tag = slot_tag(step.effect_key, step.step.attempts)
    page = {"session_id": claim.session_id, "boot_id": claim.boot_id}
    return A_PROCESS if journal.is_left(**page, slot=attempt.slot, tag=tag, in_child=in_child) else ""


def slot_tag(effect_key: bytes, attempt: int) -> bytes:
    """Names one attempt in a session page: enough to tell it from the attempt that used the slot before."""
    return effect_key[:7] + bytes((attempt & 0xFF,))


def attempts_left(step: StepView, tool: Tool[..., object], *, also_spared: int = 0) -> bool:
    if step.step is None:
        return True
    spared = min(step.spared + also_spared, tool.spared_max)
    return step.step.attempts - spared < max(tool.attempts, tool.retries + 1)


def pause_s(tool: Tool[..., object], *, reason: str, tries: int, retry_after_s: float | None) -> float:
    """How long after the end of an attempt the next one starts: longer each time; a busy far end, or a tool that
    could not send, says how long."""
    after = (retry_after_s or 0.0) if reason in ("busy", "refused", "not sent") else 0.0
    wait_s = max(after, min(BACKOFF_S * 2 ** min(tries - 1, 12), BACKOFF_S_MAX))
    return max(wait_s, tool.retry_delay_s) if reason in ("refused", "raised") else wait_s


def _ended(view: TaskView, step: StepView) -> tuple[Claim, int] | None:
    """The claim under which the newest attempt had ended for certain, and when on the boot clock of its machine."""
    if step.ended is not None:
        epoch, boot_ms = step.ended
        claim = view.claims.get(epoch)
        return None if claim is None else (claim, boot_ms)
    claim = _superseded(view, step.attempts[-1] if step.attempts else None)
    return None if claim is None else (claim, claim.boot_ms)


def _superseded(view: TaskView, attempt: Attempt | None) -> Claim | None:
    """The first claim after the attempt's: by then its session was dead or past its deadline."""
    newest = view.epoch >> 32
    if attempt is None or attempt.epoch >> 32 < newest:
        # The timeline that a restore lost may have sent after the newest attempt we know of.
        later = [epoch for epoch in view.claims if epoch >> 32 == newest]
    else:
        later = [epoch for epoch in view.claims if epoch > attempt.epoch]
    return view.claims[min(later)] if later else None


def outcome_of(step: StepView) -> object:
    """What `run.call` gives for a closed step, the first time and on every replay."""
    match step.state:
        case StepState.SUCCEEDED:
            if step.unkept:
                raise errors.ResultNotKept(tool=step.tool, ordinal=step.ordinal, why=step.unkept)
            if (found := step.found_at) is not None and found.with_others:
                raise errors.DoneWithOtherArguments(
                    tool=step.tool, ordinal=step.ordinal, args=copied(found.args), result=copied(step.result)
                )
            return copied(step.result)
        case StepState.FAILED:
            failure = step.failure
            if failure.proven:
                raise errors.Refused(failure.proof)
            raise errors.ToolFailed(tool=step.tool, kind=str(failure.kind), text=str(failure.text))
        case StepState.SKIPPED:
            if (said := step.planned.gate) is not None and said.refused:
                raise errors.GateRefused(
                    tool=step.tool, ordinal=step.ordinal, rule=said.rule, why=said.why, retry_after_s=said.retry_after_s
                )
            raise errors.StepSkipped(ordinal=step.ordinal, note=step.note)
        case _:
            raise errors.InvariantViolated("I2", f"step {step.ordinal} is {step.state}, not closed")


def check_same(step: StepView, tool: Tool[..., Any], mark: bytes, args: object) -> None:
    """On replay the code must ask for the very call that is recorded at this ordinal."""
    if step.tool != tool.name:
        raise Suspended(Diverged(f"step {step.ordinal}: the journal has {step.tool}, the code now has {tool.name}"))
    if step.fingerprint != mark:
        why = f"step {step.ordinal}: the code now calls {tool.name} with other arguments"
        raise Suspended(Diverged(why, differences(step.args, args)))
    if step.letter != tool.letter and not step.closed:
        was, now = CLASSES[step.letter].name, CLASSES[tool.letter].name
        raise Suspended(Diverged(f"step {step.ordinal}: the effect class of {tool.name} was {was} and is now {now}"))


def differences(recorded: object, now: object) -> str:
    """Where two JSON objects differ, a line for each name; for a person."""
    was, asked = (cast(Body, one) if isinstance(one, dict) else {"value": one} for one in (recorded, now))
    names = [name for name in (was | asked) if was.get(name, UNSET) != asked.get(name, UNSET)]
    return "\n".join(f"{name}: recorded {_shown(was, name)}, now {_shown(asked, name)}" for name in names)


def _shown(values: Body, name: str) -> str:
    return json.dumps(values[name], ensure_ascii=False)[:DIFFERENCE_CHARS_MAX] if name in values else "nothing"


def is_answer(item: InboxItem, step: StepView) -> bool:
    """Whether this is a decision about the question that the step asks now. Not about one it asked before, nor one from
    a copy of the journal: that may have been carried out in the timeline that the restore has lost."""
    asked = None if step.parked is None else step.parked[0]
    same = item.kind is InboxKind.DECISION and item.ordinal == step.ordinal
    return same and asked is not None and DecisionGiven.read(item.body).epoch == asked


def needs_approval(tool: Tool[..., Any], step: StepView) -> bool:
    """Whether a person must say yes before it starts: by the tool, or by the gate of its task."""
    return tool.needs_approval or step.planned.gate is not None


def approval_binding(step: StepView) -> str:
    """What an approval is for: these arguments, under this key, of this version of the tool."""
    key = effect_key_from_bytes(step.effect_key)
    return f"{key}/{step.fingerprint.hex()}/{step.planned.version}"


def evidence_of(step: StepView, found: object, told: Sequence[InboxItem] = ()) -> list[Body]:
    """What a person should see: every attempt, its end, what the lookup and others said."""
    seen: list[Body] = [
        {"attempt": number, "started_ms": one.at_ms, "epoch": one.epoch, "fence": one.fence}
        for number, one in enumerate(step.attempts, start=1)
    ]
    if step.doubt:
        seen.append({"ended": step.doubt, **{k: v for k, v in step.error.items() if v and k != "trace"}})
    if found is not None:
        seen.append({"lookup": found})
    seen += [{"told": item.body, "at_ms": item.at_ms} for item in told]
    return seen


NONE_AT_ALL = -1_000_000  # below every count of attempts that were spared
QUESTION = (
    "was it done? The agent no longer has this tool; "
    "decide done or skip, or give the agent the tool again and decide run"
)
OTHER_CLASS = (
    "was it done? The step is recorded as {was}, and the tool is {now} now; "
    "decide done or skip, or declare {was} again and decide run"
)


class MissingTool(Tool[..., Any]):
    """In place of a tool that an agent does not have any more, or has under another class. An open call of such a tool
    may have taken effect, and nothing here can find out. So the step itself is parked, with that question: then
    evidence, a person's decision and a cancel do for it what they do for every parked step. It has no attempts, so it
    is never sent; it has no lookup, so nothing is asked of it."""

    def __init__(self, step: StepView, now: Tool[..., Any] | None) -> None:
        super().__init__(
            _refuse,
            name=step.tool,
            effect=_effect_of(step),
            timeout_s=1.0,
            attempts=NONE_AT_ALL,
            retries=NONE_AT_ALL,
            marks_sending=True,
        )
        self.question = QUESTION
        if now is not None:
            self.delay_ms = max(self.delay_ms, now.delay_ms)
            self.question = OTHER_CLASS.format(was=self.effect.name, now=now.effect.name)


async def _refuse(**_args: object) -> None:
    raise errors.NotSent("the agent no longer has the tool of this step")


def _effect_of(step: StepView) -> Effect:
    if step.letter != Keyed.letter:
        return CLASSES[step.letter]()
    window_s = max(1.0, step.planned.window_ms / 1000)
    return Keyed(window_s=window_s, fingerprint="checked", refusals_stored=True)
