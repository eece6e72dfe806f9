"""Backups: places, repositories and snapshots."""

from __future__ import annotations

from holdfast.errors.base import EXIT_PLACE, BadUsage, Conflict, HostUnfit, NotFound, Retryable, StateUnusable


class PlaceMissing(Retryable):
    """The place is not there: the disk is not mounted, another disk is, or the repository is missing. Holdfast
    recognizes a place by its file `holdfast-place.json`; an empty folder is not taken for a new place."""

    code = "place-missing"
    exit_code = EXIT_PLACE
    default_hint = "mount or plug in the disk; the next run catches up by itself"


class PlaceUnreachable(Retryable):
    """The connection to the host failed or broke, or the host did not answer within a minute. Incomplete snapshots do
    not count. The other places continued."""

    code = "place-unreachable"
    exit_code = EXIT_PLACE
    default_hint = "try the same ssh address by hand; the next run catches up by itself"


class PlaceFull(Retryable):
    """The place has no space left, or its quota is reached.
    Borg needs some space even to remove or check snapshots. Once ten segments hold superseded data it also
    needs room for a whole segment: about 40 MB in a folder, up to half a gigabyte on a remote host.
    Holdfast compacts a full place by itself, unless snapshots are missing there (snapshots-missing)."""

    code = "place-full"
    exit_code = EXIT_PLACE
    default_hint = (
        "free some space there first: Borg can neither prune nor check on a full disk. Then run `holdfast backup "
        "prune`. Borg needs room for one whole segment (a file of the repository) besides the data. On a remote host, "
        "`borg config REPOSITORY max_segment_size 16777216` makes segments smaller"
    )


class RepositoryLocked(Retryable):
    """Another client has held the repository's lock for more than a minute. A lock left by a dead process of this
    machine disappears by itself; one left by another machine does not."""

    code = "repository-locked"
    default_hint = (
        "wait for the other backup to end; a restore needs no lock. If the machine that held the lock will never "
        "come back: `holdfast place break-lock NAME`"
    )


class BackupInterrupted(Retryable):
    """A signal ended Borg, or it took too long. No half archive is left."""

    code = "backup-interrupted"
    default_hint = "an unfinished snapshot does not count; the next run tries again"


class BackupBusy(Retryable):
    """Another process is making or restoring a snapshot of this agent."""

    code = "backup-busy"
    default_hint = "only one snapshot of an agent is made or restored at a time; wait for the other one"


class EngineMissing(HostUnfit):
    """Borg, the program that makes backups, is not installed or does not start. The agent continues; its places are
    marked as failed, and a notice is sent when no verified backup is recent enough."""

    code = "engine-missing"
    default_hint = (
        "`holdfast doctor --install-borg` builds it; or `sudo apt-get install borgbackup` (Debian 13 or backports), "
        "`brew install borgbackup`"
    )


class EngineTooOld(HostUnfit):
    """The installed Borg is older than 1.4, or writes another format (2). Debian 12 ships such a version."""

    code = "engine-too-old"
    default_hint = (
        "install Borg 1.4 (`holdfast doctor --install-borg` builds it). Before 1.2.5, anyone who can write to the "
        "repository can fake archives (CVE-2023-36811). `accept_old_borg` under [backup] accepts the risk"
    )


class BadPlace(BadUsage):
    """The name or address cannot be a place, or `places.json` is malformed."""

    code = "bad-place"
    default_hint = "see `holdfast explain places`"


class PlaceNotFound(NotFound):
    """The agent has no place of that name."""

    code = "place-not-found"
    default_hint = "`holdfast place list` shows the places of this agent"


class PlaceTaken(Conflict):
    """There is already a repository or folder that this agent's vault does not open. Nothing there was changed."""

    code = "place-taken"
    default_hint = "choose another folder; nothing there was changed"


class PlaceRefused(HostUnfit):
    """The host or the file system does not let this agent use the path."""

    code = "place-refused"
    default_hint = "compare the path with `borg serve --restrict-to-path` on that host"


class PassphraseRefused(StateUnusable):
    """The passphrase from the vault does not open this repository: it belongs to another agent or vault."""

    code = "passphrase-refused"
    default_hint = (
        "Holdfast took the passphrase from the vault, so you did not mistype it. The repository belongs to another "
        "agent or vault: compare the `id` in its file `config` with places.json"
    )


class RepositoryMoved(Conflict):
    """The repository is not where this machine last used it. A copy and its original must never both be used."""

    code = "repository-moved"
    default_hint = (
        "if you moved the repository, run `holdfast place move NAME ADDRESS`. If you copied it, use only one of the "
        "two from now on"
    )


class RepositoryRolledBack(StateUnusable):
    """The repository is older than what this machine has already seen of it: it was replaced by an older copy. A
    machine that never saw the repository cannot notice this; the signed heads show it."""

    code = "repository-rolled-back"
    default_hint = (
        "an older copy replaced the repository at this place: find out why first. Then remove the place and add a "
        "new, empty one; keep the older copy, because a restore can read it"
    )


class RepositoryReplaced(StateUnusable):
    """Another repository is where this agent's was: its id is not the one in `places.json` or `place.json`. Nothing was
    written to it. Your passphrase is not wrong."""

    code = "repository-replaced"
    default_hint = (
        "Holdfast wrote nothing there. Is the wrong disk mounted, or the address wrong? If a person replaced the "
        "repository, find out who; then run `holdfast place remove NAME` and add a new place"
    )
    found_id = ""  # of the repository that is there


class RepositoryKeyMissing(StateUnusable):
    """The key block is missing from the repository's config, or is damaged. The vault and the other places keep a
    copy."""

    code = "repository-key-missing"
    default_hint = "`holdfast place fix-key NAME` writes the vault's copy of the repository's key into the repository"


class RepositoryDamaged(StateUnusable):
    """Data in the repository is missing or is not what was written. New snapshots there may share the damaged part, so
    they do not count until one was test-restored."""

    code = "repository-damaged"
    default_hint = (
        "restore from another place, and check the disk of this one. Then remove this place and add a new, empty one. "
        "If no other place has the snapshots, repair a copy of this one: `holdfast explain restore-with-borg`"
    )


class SnapshotNotFound(NotFound):
    """The repository has no archive of that name, no place holds a snapshot that can be restored, none is as old as
    `--at` asks, or the snapshot has no such file. The message names the oldest snapshot or similar names."""

    code = "snapshot-not-found"
    default_hint = "`holdfast backup list` shows the snapshots of each place"


class SnapshotExists(Conflict):
    """The repository already has an archive of that name. Another copy of this agent may be writing."""

    code = "snapshot-exists"
    default_hint = "an agent uses each snapshot name only once: find out whether another copy of it runs, and stop that"


class SnapshotIncomplete(StateUnusable):
    """Borg warned while it made or read the archive: a file is missing or unreadable."""

    code = "snapshot-incomplete"
    default_hint = "this snapshot does not count as a backup; the message quotes what Borg says is missing"


class SnapshotFailed(HostUnfit):
    """A snapshot of the agent's folder could not be made. A database cannot be copied whole, there are too many files,
    the journal is missing, or another incarnation of the agent has made backups since. No place was written to."""

    code = "snapshot-failed"
    default_hint = "nothing was changed; the message says why"


class BackupDamaged(StateUnusable):
    """What came from a place does not match its signed head: something is missing, cut off or changed, or belongs to
    another head. Nothing was restored."""

    code = "backup-damaged"
    default_hint = (
        "nothing was restored. Restore from another place (`holdfast backup list`), and keep this one for an "
        "investigation"
    )


class ArchiveRefused(StateUnusable):
    """An archive holds what no snapshot holds: links, devices, names that lead outside, unknown files, or more bytes
    than the signed head says. This is not ordinary damage: a person with write access to that place may have made it.
    Nothing was written outside a scratch folder."""

    code = "archive-refused"
    default_hint = "nothing was restored. Restore from another place, and find out who can write to this one"


class PruneRefused(Conflict):
    """Nothing was removed: snapshots that the chain of heads names are missing, or no snapshot of this place was ever
    verified."""

    code = "prune-refused"
    default_hint = "run `holdfast backup verify` first; if a snapshot is missing, find out why"


class SnapshotsMissing(Conflict):
    """Snapshots have disappeared from a place, and Holdfast did not remove them.
    A person with access to the place or its passphrase removed them, or the repository was put back to an
    older day. New snapshots are still made there. The report stays until you accept it."""

    code = "snapshots-missing"
    default_hint = (
        "find out who removed the snapshots, and whether you can still trust the place. If its repository is "
        "append-only, it still holds them. If the removal was right, continue without them: `holdfast backup prune "
        "--accept-missing`"
    )


class BackupFailed(HostUnfit):
    """Borg failed in an unknown way; its first line is in the message."""

    code = "backup-failed"
    default_hint = "`holdfast place check NAME` says more; Borg's lines are in the message"
