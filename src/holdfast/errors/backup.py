"""Backups: places, repositories and snapshots."""

from __future__ import annotations

from holdfast.errors.base import EXIT_PLACE, BadUsage, Conflict, HostUnfit, NotFound, Retryable, StateUnusable


class PlaceMissing(Retryable):
    """A place of backups is not there: not mounted, or another disk is where it was."""

    code = "place-missing"
    exit_code = EXIT_PLACE
    default_hint = "mount or plug in the disk; the next run catches up by itself"


class PlaceUnreachable(Retryable):
    code = "place-unreachable"
    exit_code = EXIT_PLACE
    default_hint = "try the same ssh address by hand; the next run catches up by itself"


class PlaceFull(Retryable):
    code = "place-full"
    exit_code = EXIT_PLACE
    default_hint = (
        "free some space there first: a full disk lets Borg neither prune nor check; then "
        "`holdfast backup prune`. Where Borg says what it requires, that is room for one whole "
        "segment beside the data: on a far host `borg config REPOSITORY max_segment_size 16777216` "
        "makes it less"
    )


class RepositoryLocked(Retryable):
    """Another client holds the repository's lock, or died holding it on another machine."""

    code = "repository-locked"
    default_hint = (
        "wait for the other backup to end; a restore needs no lock. If the machine that held it "
        "is gone for good: `holdfast place break-lock NAME`"
    )


class BackupInterrupted(Retryable):
    code = "backup-interrupted"
    default_hint = "nothing half made counts; the next run does it again"


class BackupBusy(Retryable):
    code = "backup-busy"
    default_hint = "one snapshot of an agent is made or restored at a time; wait for the other one"


class EngineMissing(HostUnfit):
    """Borg is not installed. The agent goes on; its backups do not."""

    code = "engine-missing"
    default_hint = (
        "`scripts/setup` builds it; else `sudo apt-get install borgbackup` (Debian 13 or "
        "backports), `brew install borgbackup`"
    )


class EngineTooOld(HostUnfit):
    code = "engine-too-old"
    default_hint = (
        "install Borg 1.4 (`scripts/setup` builds it); before 1.2.5 whoever can write to the "
        "repository can fake archives (CVE-2023-36811). `accept_old_borg` under [backup] takes it"
    )


class BadPlace(BadUsage):
    """A name, an address or a line of places.json that cannot be taken."""

    code = "bad-place"
    default_hint = "see docs/reference/places.md"


class PlaceNotFound(NotFound):
    code = "place-not-found"
    default_hint = "`holdfast place list` shows the places of this agent"


class PlaceTaken(Conflict):
    """Something that is not ours lies where the place would be."""

    code = "place-taken"
    default_hint = "choose another folder; nothing there was changed"


class PlaceRefused(HostUnfit):
    """The far end does not let this agent use that path."""

    code = "place-refused"
    default_hint = "compare the path with `borg serve --restrict-to-path` on that host"


class PassphraseRefused(StateUnusable):
    code = "passphrase-refused"
    default_hint = (
        "the repository belongs to another agent or vault: compare its id with places.json; it is never asked for twice"
    )


class RepositoryMoved(Conflict):
    code = "repository-moved"
    default_hint = (
        "if you moved it yourself: `holdfast place move NAME ADDRESS`; never go on with a copy and its original"
    )


class RepositoryRolledBack(StateUnusable):
    """The repository is older than what this machine has seen of it."""

    code = "repository-rolled-back"
    default_hint = (
        "somebody put an older copy in its place: look into it first. Then remove this place and "
        "add a new, empty one; keep the old copy, restores can read it"
    )


class RepositoryReplaced(StateUnusable):
    """Another repository lies where this agent's was: its id is not the one that is known."""

    code = "repository-replaced"
    default_hint = (
        "nothing was written to it. Is the wrong disk mounted, or the wrong address given? If it "
        "was exchanged, look into who did it; then `holdfast place remove NAME` and add a new one"
    )


class RepositoryKeyMissing(StateUnusable):
    code = "repository-key-missing"
    default_hint = "`holdfast place mend-key NAME` puts the kept copy of the key block back"


class RepositoryDamaged(StateUnusable):
    code = "repository-damaged"
    default_hint = (
        "restore from another place; look at the disk. Then make a new place there, "
        "or see docs/how-to/restore-with-borg.md"
    )


class SnapshotNotFound(NotFound):
    code = "snapshot-not-found"
    default_hint = "`holdfast backup list` shows the snapshots of each place"


class SnapshotExists(Conflict):
    code = "snapshot-exists"
    default_hint = "names are made of a number that only rises: is another copy of this agent live?"


class SnapshotIncomplete(StateUnusable):
    """Borg made or gave a snapshot with a warning: something is missing in it."""

    code = "snapshot-incomplete"
    default_hint = "it does not count as a backup; the lines of Borg say what is missing"


class SnapshotFailed(HostUnfit):
    """A snapshot of the agent's folder could not be made; no place was given anything."""

    code = "snapshot-failed"
    default_hint = "nothing was changed; the message says what stands in the way"


class BackupDamaged(StateUnusable):
    """What came out of a place is not what the signed head says."""

    code = "backup-damaged"
    default_hint = (
        "nothing was put in place; restore from another place (`holdfast backup list`), and keep "
        "this one for those who look into it"
    )


class ArchiveRefused(StateUnusable):
    """An archive holds what no snapshot of ours holds: somebody may have made it on purpose."""

    code = "archive-refused"
    default_hint = "nothing was put in place; restore from another place, and find out who can write here"


class PruneRefused(Conflict):
    """Snapshots that must exist are gone, or none is verified: nothing is removed."""

    code = "prune-refused"
    default_hint = "`holdfast backup verify` first; a missing snapshot is looked into by a person"


class SnapshotsMissing(Conflict):
    """Snapshots that a place held are gone from it, and we did not remove them."""

    code = "snapshots-missing"
    default_hint = (
        "find out who removed them, and whether the place can be trusted: an append-only "
        "repository still holds them. If you know: `holdfast backup prune --accept-missing`"
    )


class BackupFailed(HostUnfit):
    """Borg failed in a way that has no name of its own."""

    code = "backup-failed"
    default_hint = "`holdfast place check NAME` says more; the lines of Borg are in the message"
