"""Several instances of one agent: documents that they share, and what they send each other."""

from __future__ import annotations

from holdfast.errors.base import BadUsage, Conflict, HostUnfit


class BadUpdate(BadUsage):
    """A change to a shared memory file is damaged, or is not one. Nothing was changed. The instance that made it sends
    it again; if it stays damaged, remove the file that carries it."""

    code = "bad-update"
    default_hint = "nothing was changed; the other instance sends it again"


class HistoryMissing(Conflict):
    """A change to a shared memory file builds on history that one of the two instances no longer keeps, because one of
    them was away for long or was restored from an old backup. Holdfast then asks for the whole document and merges the
    lines; you do nothing."""

    code = "history-missing"
    default_hint = "nothing was changed; Holdfast asks the other instance for its whole document"


class UpdateRefused(Conflict):
    """A change to a shared memory file is from another agent, from an instance that is not enrolled or was removed, or
    from before the agent was restored. Nothing was changed. The message says which it is. If you know the instance,
    enrol it; if you do not, find out who can write to the shared folder."""

    code = "update-refused"
    default_hint = "nothing was changed; `holdfast instance list` shows the instances that are enrolled"


class UpdateNewer(Conflict):
    """A change to a shared memory file was made by a newer version of Holdfast. Nothing was changed. Upgrade Holdfast
    on this host; until then its memory waits."""

    code = "update-newer"
    default_hint = "nothing was changed; upgrade Holdfast on this host"


class InstancesUnfit(HostUnfit):
    """This host cannot share memory with the other instances of the agent: a package is missing, or there is neither a
    shared folder nor a shared journal. The message says which. Tasks run all the same."""

    code = "instances-unfit"
    default_hint = "pip install 'holdfast[instances]'"
