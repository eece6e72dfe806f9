"""The agent's folder: settings, memory files, hand-off, moving to another host."""

from __future__ import annotations

from holdfast.errors.base import BadUsage, Conflict, NotFound, Retryable


class BadSettings(BadUsage):
    code = "bad-settings"
    default_hint = "see docs/reference/settings.md"


class NotAnAgent(NotFound):
    code = "not-an-agent"
    default_hint = "name its folder with --home, or make one with `holdfast init NAME`"


class AgentExists(Conflict):
    code = "agent-exists"
    default_hint = "choose another folder; an agent is never made over another one"


class NoHandoff(NotFound):
    """The agent's folder holds neither a journal nor a hand-off."""

    code = "no-handoff"
    default_hint = "`holdfast worker APP` begins one; `holdfast recover` brings a lost agent back"


class MemoryFileBusy(Retryable):
    code = "memory-file-busy"
    default_hint = "nothing is lost: what was to be written is in the journal and is written later"


class MovedAway(Conflict):
    """This copy of the agent was moved to another host, or is about to be: it does not run."""

    code = "moved-away"
    default_hint = "start it on the other host; `holdfast migrate cancel` takes a move back"


class MoveRefused(Conflict):
    """The package of a move cannot be taken here: it was taken before, or is not the newest."""

    code = "move-refused"
    default_hint = "nothing was changed; see docs/how-to/move-an-agent.md"
