"""The agent's folder: settings, memory files, hand-off, moving to another host."""

from __future__ import annotations

from holdfast.errors.base import BadUsage, Conflict, NotFound, Retryable, Unresolved


class BadSettings(BadUsage):
    """An option or `holdfast.toml` has an unknown setting or an impossible value."""

    code = "bad-settings"
    default_hint = "see `holdfast explain settings`"


class NotAnAgent(NotFound):
    """The folder has no `holdfast.toml` that names an agent. `HOLDFAST_HOME` may name the agent's folder too."""

    code = "not-an-agent"
    default_hint = "name the agent's folder with --home, or make an agent with `holdfast init NAME`"


class AgentExists(Conflict):
    """The folder already holds a complete agent with its own identity. `holdfast identity show` says which. An
    interrupted `holdfast init` does not raise this; run it again."""

    code = "agent-exists"
    default_hint = "choose another folder; Holdfast never overwrites an agent"


class NoHandoff(NotFound):
    """The agent's folder has neither a journal nor a `handoff.md`."""

    code = "no-handoff"
    default_hint = "`holdfast worker APP` makes a journal; `holdfast recover` restores a lost agent"


class MemoryFileBusy(Retryable):
    """Another process held the agent's memory files for too long, or saved one each time it was written. The line is in
    the journal; a worker or the next `holdfast memory add` writes it to the file."""

    code = "memory-file-busy"
    default_hint = "nothing is lost: the text is in the journal, and Holdfast writes it to the file later"


class MovedAway(Conflict):
    """This copy of the agent was moved to another host, or is being moved; it does not run.
    `holdfast migrate import` takes the package on the other host. `holdfast migrate export` continues an
    interrupted move. See docs/how-to/move-an-agent.md."""

    code = "moved-away"
    default_hint = "start the agent on the other host; `holdfast migrate cancel` undoes a move"


class IsStandby(Conflict):
    """This folder is an enrolled standby: another instance of the agent acts, and this one waits. Nothing was changed.
    See docs/explanation/clones.md."""

    code = "is-standby"
    default_hint = (
        "`holdfast instance list` shows which instance acts; `holdfast instance promote` lets this one take over"
    )


class NotEnrolled(Conflict):
    """The agent has a roster of its instances, and this folder is not in it: it is a copy, or it was removed. It sends
    nothing and writes nothing. See docs/explanation/clones.md."""

    code = "not-enrolled"
    default_hint = (
        "`holdfast instance list` shows the enrolled instances; to add this host, run `holdfast instance invite` on "
        "one of them. If none is left, run `holdfast recover` with the recovery words"
    )


class RescuedCopy(Conflict):
    """This folder was restored with a rescue key. It holds the files and a journal that can be read, and nothing that
    signs, sends or changes anything: no worker runs here, and nothing is submitted, decided, published or backed up.
    See docs/how-to/rescue-key.md."""

    code = "rescued-copy"
    default_hint = (
        "look at the copy with `holdfast task list` and `holdfast handoff`; to run the agent again, use its recovery "
        "words: `holdfast recover --place ADDRESS --home FOLDER`"
    )


class MoveRefused(Conflict):
    """A package cannot be imported here, or a move cannot be cancelled. The package was imported before, belongs to
    another agent, is older than this folder or is not a package; or the agent is an adopted one, or its journal is on a
    server. Nothing was changed.
    """

    code = "move-refused"
    default_hint = "nothing was changed; see `holdfast explain move-an-agent`"


class ReportInvalid(BadUsage):
    """A drill report was changed, is incomplete, is not signed by the agent whose key log you gave, or does not follow
    the report before it. It proves nothing."""

    code = "report-invalid"
    default_hint = "get the file again from the agent's folder or from a backup; `holdfast drill verify` checks it"


class NotProven(Unresolved):
    """The drill could not run, so it proves nothing: a place is away, the words were not given, the vault needs a
    person, or this machine allows no shadow. Nothing was harmed."""

    code = "not-proven"
    default_hint = "fix what the message names, then run the drill again"
