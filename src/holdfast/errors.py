"""Every error of Holdfast.

    Exception
     +- HoldfastError                code, exit_code, hint; the class says whether to try again
         +- Retryable                the same call may succeed later; nothing was done
         |   +- JournalBusy          another process holds the write lock
         |   +- JournalFull          no space; no new step begins until there is
         |   +- SessionLost          this process's lease is over
         |   +- MemoryFileBusy       others write a memory file all the time
         |   +- CommitUnknown        the journal cannot say whether the write is durable
         |   +- DiskFull             no space for a file that is not the journal's
         |   +- backup: PlaceMissing, PlaceUnreachable, PlaceFull, RepositoryLocked,
         |   |           BackupInterrupted, BackupBusy
         |   +- SignerUnavailable    nobody answers at the socket of the signer process
         |   +- AgentElsewhere       another instance of the agent holds its lease
         |   +- NotFinal             too few witnesses vouch for a record; sent again, it may pass
         |   +- ModelUnavailable     no endpoint of a model gave a reply; the same request may later
         |       +- ModelRateLimited, ModelOverloaded
         +- Terminal                 trying again changes nothing
         |   +- usage: BadInput, BadValue, TooLarge, BadApp, BadSettings, NotDurable, StepOpen,
         |   |         ToolNotImportable, Misuse, NoSchema, BadReference, BadSecret, SecretInInput,
         |   |         BadEvent, BadRecord
         |   +- lookup: TaskNotFound, StepNotFound, ApprovalNotFound, BlobNotFound, SecretNotFound,
         |   |          NotAnAgent, NoHandoff, LogMissing
         |   +- conflict: RequestConflict, MessageConflict, LeaseLost, ScopeBusy, NotNow,
         |   |             NotSettleable, SecretInUse, AgentExists, MovedAway, MoveRefused
         |   +- journal: JournalDamaged, JournalNewer, JournalOlderCopy, JournalStopped,
         |   |           JournalGone, NotAJournal, KeysMissing, KeysWrong, HighWaterDamaged,
         |   |           SecretsDamaged, WitnessDamaged, LogDamaged
         |   +- place: ReadOnly, ModeTooWide, WrongOwner, WrongKind, SymlinkRefused, OpenParent,
         |   |          NetworkFileSystem, LocksMissing, BootIdMissing, DiskFailed
         |   +- identity: BadPhrase, BadShare, BadSheet, BadKeyFile, VaultMissing, VaultExists,
         |   |             VaultLocked, VaultDamaged, KeysReplaced, SignerRefused,
         |   |             AgentQuarantined, InstanceDamaged, ArbiterDamaged
         |   +- backup: EngineMissing, EngineTooOld, BadPlace, PlaceNotFound, PlaceTaken,
         |   |           PlaceRefused, PassphraseRefused, RepositoryMoved, RepositoryRolledBack,
         |   |           RepositoryReplaced, RepositoryKeyMissing, RepositoryDamaged,
         |   |           SnapshotNotFound, SnapshotExists, SnapshotIncomplete, SnapshotFailed,
         |   |           BackupDamaged, ArchiveRefused, PruneRefused, SnapshotsMissing,
         |   |           BackupFailed
         |   +- model: ModelRejected (the request), ContextTooLong, ModelKeyRefused,
         |   |          ModelNotFound, ModelQuotaSpent, ModelRefused, StateHeldElsewhere
         |   +- InvariantViolated    a promise of the code itself is broken: the work stops
         |   +- StepFailed           a step is closed as failed; the task's code may handle it
         |       +- Refused          the far end says it did not and will not happen
         |       +- ToolFailed       a Read or Transactional tool raised
         |       +- StatementFailed  the database refused a Transactional tool's statement
         |       +- StepSkipped      a person decided that the step is not done
         |       +- GateRefused      the task's gate did not let the call through
         |       +- ScratchNotKept   the step ended, but the files it left could not be stored
         |       +- DoneWithOtherArguments   a lost timeline did it, and otherwise than asked now
         |   +- TaskFailed, TaskCancelled   how a task ended, for the one who waits for it
         |   +- ResultErased         it ended long ago; only its state is still kept
         +- Unresolved               an effect or a task that reconcile or a person must settle
             +- NotSent              no byte left (a tool says so)
             +- Busy                 the far end still works on this effect key (a tool says so)
             +- KeyReused            the far end knows this effect key with another body
             +- HttpUnknown          the request was sent and no usable answer came
             +- ReplyGarbled         a model's reply was cut, empty, too long or not understood
             +- ChildDied, AttemptTimedOut   a blocking tool's process died; the deadline passed
             +- ToolRaised           a blocking tool raised in its own process
             +- TaskParked           the task needs a person
             +- TaskUnfinished       a wait ended before the task did
    BaseException
     +- Signal                       control flow that `except Exception` must not swallow
         +- Fenced                   another run holds a newer epoch: stop at once
         +- Suspended                the run ends here for now (sleeping, waiting, parked)
         +- Cancelled                the task was cancelled

Messages say what was tried, on what, and what happened; ids in full, no secrets.
Every class below HoldfastError that a person can meet has a section in docs/reference/errors.md,
headed by its code.
"""

from __future__ import annotations

from typing import Any, ClassVar

EXIT_USAGE = 2
EXIT_NOT_FOUND = 3
EXIT_CONFLICT = 4
EXIT_UNRESOLVED = 5
EXIT_JOURNAL = 6
EXIT_PLACE = 7
EXIT_RETRY = 8
EXIT_FAILED = 9


class HoldfastError(Exception):
    """Base of all errors: a stable code, an exit code and, where a person can act, a hint."""

    code: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1
    default_hint: ClassVar[str] = ""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint or self.default_hint

    @property
    def page(self) -> str:
        """Where the documentation explains this error."""
        return f"docs/reference/errors.md#{self.code}"


class Retryable(HoldfastError):
    exit_code = EXIT_RETRY


class Terminal(HoldfastError):
    pass


class Unresolved(HoldfastError):
    exit_code = EXIT_UNRESOLVED


# Retryable


class JournalBusy(Retryable):
    code = "journal-busy"
    default_hint = "another process is writing; it is tried again, or see `holdfast doctor`"


class JournalFull(Retryable):
    code = "journal-full"
    exit_code = EXIT_PLACE
    default_hint = "free some space on the journal's disk; work goes on by itself, nothing was lost"


class DiskFull(Retryable):
    code = "disk-full"
    exit_code = EXIT_PLACE
    default_hint = "free some space there and run the same command again; nothing half made counts"


class NotFinal(Retryable):
    """A record was sent, and too few witnesses vouch for it. It is kept and sent again."""

    code = "not-final"
    default_hint = "run the same command again when the witnesses can be reached; it goes on there"


class MemoryFileBusy(Retryable):
    code = "memory-file-busy"
    default_hint = "nothing is lost: what was to be written is in the journal and is written later"


class SessionLost(Retryable):
    code = "session-lost"
    default_hint = (
        "the process was paused or the journal was unreachable for longer than the lease; "
        "another session resumes its tasks"
    )


class CommitUnknown(Retryable):
    code = "commit-unknown"
    default_hint = "the row is read again under a lock before anything is sent"


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


class SignerUnavailable(Retryable):
    code = "signer-unavailable"
    default_hint = "start `holdfast identity signer`; nothing was signed"


class AgentElsewhere(Retryable):
    """Another instance holds the agent's lease: this one may not act."""

    code = "agent-elsewhere"
    default_hint = "it is asked for again; stop the other instance, or let it yield"


class ModelUnavailable(Retryable):
    """No endpoint of the model gave a reply; nothing was taken from one.

    `retry_after_s` is how long the far end asks to wait, or None where it did not say;
    `failures` are what each endpoint said, as JSON values.
    """

    code = "model-unavailable"
    default_hint = "the same request is sent again later; a second endpoint would have taken over"

    def __init__(self, message: str, *, retry_after_s: float | None = None, status: int | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.status = status
        self.failures: tuple[dict[str, object], ...] = ()


class ModelRateLimited(ModelUnavailable):
    code = "model-rate-limited"
    default_hint = "the request is sent again after the time the provider names"


class ModelOverloaded(ModelUnavailable):
    code = "model-overloaded"
    default_hint = "the provider has too much to do; the request is sent again later"


# Terminal: usage


class BadInput(Terminal):
    code = "bad-input"
    exit_code = EXIT_USAGE


class BadEvent(BadInput):
    """A webhook request that is not the provider's, or cannot be read: nothing is taken from it."""

    code = "bad-event"
    default_hint = "answer 400; if it is the provider's, check the signing secret of the endpoint"


class BadRecord(BadInput):
    """Bytes that are no identity record: wrong form, unknown field, impossible value."""

    code = "bad-record"
    default_hint = "nothing was taken from it; ask another relay, or whoever sent it, for the log"


class BadValue(Terminal):
    """An argument or result that is not a JSON value we can keep exactly."""

    code = "bad-value"
    exit_code = EXIT_USAGE
    default_hint = "pass JSON values: objects with text keys, lists, text, finite numbers, true, false, null"


class TooLarge(Terminal):
    code = "too-large"
    exit_code = EXIT_USAGE
    default_hint = "pass a reference instead: put large contents into a blob or a file"


class BadApp(Terminal):
    code = "bad-app"
    exit_code = EXIT_USAGE
    default_hint = (
        "name a list of tasks as `module:attribute` or `path/file.py:attribute`, for example `examples/trip.py:tasks`"
    )


class BadSettings(Terminal):
    code = "bad-settings"
    exit_code = EXIT_USAGE
    default_hint = "see docs/reference/settings.md"


class BadReference(Terminal):
    code = "bad-reference"
    exit_code = EXIT_USAGE
    default_hint = "name a step as TASK/ORDINAL, for example 01J9ZK3V5T8Q2M4N6P7R8S9T0V/4"


class NotDurable(Terminal):
    code = "not-durable"
    exit_code = EXIT_USAGE
    default_hint = "call the tool through `run.call(...)` in a task, or in `hf.scope(...)`"


class StepOpen(Terminal):
    code = "step-open"
    exit_code = EXIT_USAGE
    default_hint = "await each step before the next one, or use `run.gather(...)`"


class ToolNotImportable(Terminal):
    code = "tool-not-importable"
    exit_code = EXIT_USAGE
    default_hint = "define the blocking tool at the top level of a module, or make it `async def`"


class Misuse(Terminal):
    code = "misuse"
    exit_code = EXIT_USAGE


class NoSchema(Terminal):
    """A tool cannot be offered to a model: a parameter's type is no JSON value."""

    code = "no-schema"
    exit_code = EXIT_USAGE
    default_hint = (
        "give the parameter a type of JSON values (docs/reference/schemas.md), or write the schema "
        "by hand: @holdfast.tool(parameters={...})"
    )

    def __init__(self, *, tool: str, why: str, parameter: str = "") -> None:
        where = f"tool {tool}" + (f": parameter {parameter!r}" if parameter else "")
        super().__init__(f"{where}: {why}")
        self.tool = tool
        self.parameter = parameter


# Terminal: models


class ModelRejected(Terminal):
    """The provider will not take this request: sending it again changes nothing."""

    code = "model-rejected"
    exit_code = EXIT_FAILED
    default_hint = "the message is the provider's; see docs/reference/models.md for what is sent"

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.failures: tuple[dict[str, object], ...] = ()


class ContextTooLong(ModelRejected):
    code = "context-too-long"
    default_hint = "shorten the conversation, or choose a model with a longer context"


class ModelKeyRefused(ModelRejected):
    code = "model-key-refused"
    default_hint = "check the endpoint's key and what it may use; keys are never shown"


class ModelNotFound(ModelRejected):
    code = "model-not-found"
    default_hint = "check the model's name and the endpoint's URL"


class ModelQuotaSpent(ModelRejected):
    code = "model-quota-spent"
    default_hint = "raise the limit or add credit at the provider; waiting alone does not help"


class ModelRefused(Terminal):
    """The model itself will not do what an agent was asked for; its words are the message."""

    code = "model-refused"
    exit_code = EXIT_FAILED
    default_hint = "ask otherwise; what was done before is in `holdfast task show`"


class StateHeldElsewhere(Terminal):
    """The request leans on state that the provider keeps and that no backup of ours holds."""

    code = "state-held-elsewhere"
    exit_code = EXIT_USAGE
    default_hint = (
        "send the contents in the messages instead, or name the surface in `allow_state`; "
        "it is then recorded with every reply"
    )


class BadSecret(Terminal):
    """A secret's name or value cannot be taken; the value is never shown."""

    code = "bad-secret"
    exit_code = EXIT_USAGE
    default_hint = "see docs/how-to/secrets.md"


class SecretInInput(Terminal):
    """What was to be recorded holds a known secret's value."""

    code = "secret-in-input"
    exit_code = EXIT_USAGE
    default_hint = "pass the handle `secret://NAME` instead; a value would be written down"

    def __init__(self, *, what: str, handle: str) -> None:
        super().__init__(f"{what} would hold the value of {handle}")
        self.handle = handle


# Terminal: phrase, shares, sheet, vault


class BadPhrase(Terminal):
    """Words that are no recovery phrase, or not the one that is looked for; never shown."""

    code = "bad-phrase"
    exit_code = EXIT_USAGE
    default_hint = "read the words from the sheet again: 24 words, four letters of each are enough"


class BadShare(Terminal):
    """Shares of a phrase that cannot be joined.

    `reason` is damaged, mixed, few, duplicate or other; `number` the place of the share among
    those that were given, 0 where it is about all of them.
    """

    code = "bad-share"
    exit_code = EXIT_USAGE
    default_hint = "read the share from its sheet again: 33 words, four letters of each are enough"

    def __init__(self, message: str, *, reason: str, number: int = 0, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.reason = reason
        self.number = number


class BadSheet(Terminal):
    """A text or code that is no recovery sheet and no public card of this version."""

    code = "bad-sheet"
    exit_code = EXIT_USAGE
    default_hint = "scan the code again, or type the words that stand beside it"


class BadKeyFile(Terminal):
    """A file that should hold a signing key to import does not."""

    code = "bad-key-file"
    exit_code = EXIT_USAGE
    default_hint = (
        "an OpenSSH private key of type ed25519, or a seed of 32 bytes (64 with the public half "
        "behind it); other kinds of keys cannot speak for an agent"
    )


class VaultMissing(Terminal):
    code = "vault-missing"
    exit_code = EXIT_JOURNAL
    default_hint = "mount or put back the vault's folder"


class VaultExists(Terminal):
    code = "vault-exists"
    exit_code = EXIT_CONFLICT
    default_hint = "choose another folder; a vault is never written over"


class VaultLocked(Terminal):
    """No slot of the vault could be opened with what was given."""

    code = "vault-locked"
    exit_code = EXIT_JOURNAL
    default_hint = "give the passphrase, or mount the file that the unattended slot names"


class VaultDamaged(Terminal):
    """A file of the vault was changed, is malformed, or asks for what we refuse to do."""

    code = "vault-damaged"
    exit_code = EXIT_JOURNAL
    default_hint = "put the file back from a copy; escrow.age lies beside every backup"


# Terminal: backups


class EngineMissing(Terminal):
    """Borg is not installed. The agent goes on; its backups do not."""

    code = "engine-missing"
    exit_code = EXIT_PLACE
    default_hint = (
        "`scripts/setup` builds it; else `sudo apt-get install borgbackup` (Debian 13 or "
        "backports), `brew install borgbackup`"
    )


class EngineTooOld(Terminal):
    code = "engine-too-old"
    exit_code = EXIT_PLACE
    default_hint = (
        "install Borg 1.4 (`scripts/setup` builds it); before 1.2.5 whoever can write to the "
        "repository can fake archives (CVE-2023-36811). `accept_old_borg` under [backup] takes it"
    )


class BadPlace(Terminal):
    """A name, an address or a line of places.json that cannot be taken."""

    code = "bad-place"
    exit_code = EXIT_USAGE
    default_hint = "see docs/reference/places.md"


class PlaceNotFound(Terminal):
    code = "place-not-found"
    exit_code = EXIT_NOT_FOUND
    default_hint = "`holdfast place list` shows the places of this agent"


class PlaceTaken(Terminal):
    """Something that is not ours lies where the place would be."""

    code = "place-taken"
    exit_code = EXIT_CONFLICT
    default_hint = "choose another folder; nothing there was changed"


class PlaceRefused(Terminal):
    """The far end does not let this agent use that path."""

    code = "place-refused"
    exit_code = EXIT_PLACE
    default_hint = "compare the path with `borg serve --restrict-to-path` on that host"


class PassphraseRefused(Terminal):
    code = "passphrase-refused"
    exit_code = EXIT_JOURNAL
    default_hint = (
        "the repository belongs to another agent or vault: compare its id with places.json; it is never asked for twice"
    )


class RepositoryMoved(Terminal):
    code = "repository-moved"
    exit_code = EXIT_CONFLICT
    default_hint = (
        "if you moved it yourself: `holdfast place move NAME ADDRESS`; never go on with a copy and its original"
    )


class RepositoryRolledBack(Terminal):
    """The repository is older than what this machine has seen of it."""

    code = "repository-rolled-back"
    exit_code = EXIT_JOURNAL
    default_hint = (
        "somebody put an older copy in its place: look into it first. Then remove this place and "
        "add a new, empty one; keep the old copy, restores can read it"
    )


class RepositoryReplaced(Terminal):
    """Another repository lies where this agent's was: its id is not the one that is known."""

    code = "repository-replaced"
    exit_code = EXIT_JOURNAL
    default_hint = (
        "nothing was written to it. Is the wrong disk mounted, or the wrong address given? If it "
        "was exchanged, look into who did it; then `holdfast place remove NAME` and add a new one"
    )


class RepositoryKeyMissing(Terminal):
    code = "repository-key-missing"
    exit_code = EXIT_JOURNAL
    default_hint = "`holdfast place mend-key NAME` puts the kept copy of the key block back"


class RepositoryDamaged(Terminal):
    code = "repository-damaged"
    exit_code = EXIT_JOURNAL
    default_hint = (
        "restore from another place; look at the disk. Then make a new place there, "
        "or see docs/how-to/restore-with-borg.md"
    )


class SnapshotNotFound(Terminal):
    code = "snapshot-not-found"
    exit_code = EXIT_NOT_FOUND
    default_hint = "`holdfast backup list` shows the snapshots of each place"


class SnapshotExists(Terminal):
    code = "snapshot-exists"
    exit_code = EXIT_CONFLICT
    default_hint = "names are made of a number that only rises: is another copy of this agent live?"


class SnapshotIncomplete(Terminal):
    """Borg made or gave a snapshot with a warning: something is missing in it."""

    code = "snapshot-incomplete"
    exit_code = EXIT_JOURNAL
    default_hint = "it does not count as a backup; the lines of Borg say what is missing"


class SnapshotFailed(Terminal):
    """A snapshot of the agent's folder could not be made; no place was given anything."""

    code = "snapshot-failed"
    exit_code = EXIT_PLACE
    default_hint = "nothing was changed; the message says what stands in the way"


class BackupDamaged(Terminal):
    """What came out of a place is not what the signed head says."""

    code = "backup-damaged"
    exit_code = EXIT_JOURNAL
    default_hint = (
        "nothing was put in place; restore from another place (`holdfast backup list`), and keep "
        "this one for those who look into it"
    )


class ArchiveRefused(Terminal):
    """An archive holds what no snapshot of ours holds: somebody may have made it on purpose."""

    code = "archive-refused"
    exit_code = EXIT_JOURNAL
    default_hint = "nothing was put in place; restore from another place, and find out who can write here"


class PruneRefused(Terminal):
    """Snapshots that must exist are gone, or none is verified: nothing is removed."""

    code = "prune-refused"
    exit_code = EXIT_CONFLICT
    default_hint = "`holdfast backup verify` first; a missing snapshot is looked into by a person"


class SnapshotsMissing(Terminal):
    """Snapshots that a place held are gone from it, and we did not remove them."""

    code = "snapshots-missing"
    exit_code = EXIT_CONFLICT
    default_hint = (
        "find out who removed them, and whether the place can be trusted: an append-only "
        "repository still holds them. If you know: `holdfast backup prune --accept-missing`"
    )


class BackupFailed(Terminal):
    """Borg failed in a way that has no name of its own."""

    code = "backup-failed"
    exit_code = EXIT_PLACE
    default_hint = "`holdfast place check NAME` says more; the lines of Borg are in the message"


class KeysReplaced(Terminal):
    """The log names other operational keys than those that this vault holds."""

    code = "keys-replaced"
    exit_code = EXIT_CONFLICT
    default_hint = "the keys were rotated elsewhere: use the vault that was rotated, or evict with the paper"


class SignerRefused(Terminal):
    """The signer process does not do what was asked, or not for this user."""

    code = "signer-refused"
    exit_code = EXIT_CONFLICT
    default_hint = "its log says why; `holdfast identity signer --help` says whom it answers"


class AgentQuarantined(Terminal):
    """This folder may not act as the agent: a copy, one left behind, or one that is frozen."""

    code = "agent-quarantined"
    exit_code = EXIT_CONFLICT
    default_hint = "see docs/explanation/clones.md; nothing was sent"


class InstanceDamaged(Terminal):
    code = "instance-damaged"
    exit_code = EXIT_JOURNAL
    default_hint = "remove the file: a new key is made, and the folder counts as a copy"


class ArbiterDamaged(Terminal):
    code = "arbiter-damaged"
    exit_code = EXIT_JOURNAL
    default_hint = "an arbiter that forgot grants nothing: put its folder back, or rotate the keys"


# Terminal: scratch files


class ScratchRefused(Terminal):
    """Something lies in the scratch folder that cannot be given to another worker as it is."""

    code = "scratch-refused"
    exit_code = EXIT_USAGE
    default_hint = "keep only plain files and folders below run.scratch.path"


class ScratchTooLarge(Terminal):
    code = "scratch-too-large"
    exit_code = EXIT_USAGE
    default_hint = "remove files that are not needed any more, or raise the limits under [scratch]"


class ScratchChanging(Terminal):
    """A file was written each time it was read, by something that no step waits for."""

    code = "scratch-changing"
    exit_code = EXIT_USAGE
    default_hint = "let whatever writes the file end before the next step"


# Terminal: lookup


class TaskNotFound(Terminal):
    code = "task-not-found"
    exit_code = EXIT_NOT_FOUND
    default_hint = "`holdfast task list` shows the tasks of this journal"

    def __init__(self, task: str) -> None:
        super().__init__(f"no task {task} in this journal")
        self.task = task


class StepNotFound(Terminal):
    code = "step-not-found"
    exit_code = EXIT_NOT_FOUND
    default_hint = "`holdfast task show TASK` lists its steps"


class ApprovalNotFound(Terminal):
    code = "approval-not-found"
    exit_code = EXIT_NOT_FOUND
    default_hint = "`holdfast approval list` shows what waits for a decision"


class BlobNotFound(Terminal):
    code = "blob-not-found"
    exit_code = EXIT_NOT_FOUND


class NotAnAgent(Terminal):
    code = "not-an-agent"
    exit_code = EXIT_NOT_FOUND
    default_hint = "name its folder with --home, or make one with `holdfast init NAME`"


class NoHandoff(Terminal):
    """The agent's folder holds neither a journal nor a hand-off."""

    code = "no-handoff"
    exit_code = EXIT_NOT_FOUND
    default_hint = "`holdfast worker APP` begins one; `holdfast recover` brings a lost agent back"


class LogMissing(Terminal):
    """The folder holds no key log, or no identity.json, of an agent."""

    code = "log-missing"
    exit_code = EXIT_NOT_FOUND
    default_hint = (
        "an agent whose set-up was cut short is finished by the same `holdfast init`; one whose "
        "home is lost comes back by `holdfast identity recover`"
    )


class SecretNotFound(Terminal):
    code = "secret-not-found"
    exit_code = EXIT_NOT_FOUND
    default_hint = "`holdfast secret list` shows the secrets of this journal"

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no secret {name!r} beside this journal")
        self.name = name


# Terminal: conflict


class AgentExists(Terminal):
    code = "agent-exists"
    exit_code = EXIT_CONFLICT
    default_hint = "choose another folder; an agent is never made over another one"


class RequestConflict(Terminal):
    """The request id belongs to a task that was submitted with another input."""

    code = "request-conflict"
    exit_code = EXIT_CONFLICT
    default_hint = "use a new request id for new work; the same id always means the same task"

    def __init__(self, *, task_id: str, request_id: str, name: str) -> None:
        super().__init__(
            f"request id {request_id!r} of {name} is task {task_id}, which was submitted with another input"
        )
        self.task_id = task_id
        self.request_id = request_id


class MessageConflict(Terminal):
    """The message id belongs to a message of this conversation that has another text."""

    code = "message-conflict"
    exit_code = EXIT_CONFLICT
    default_hint = "use a new message id for a new message; the same id always means the same one"

    def __init__(self, *, task_id: str, message_id: str, conversation: str) -> None:
        super().__init__(f"message id {message_id!r} of the conversation {conversation!r} was sent with another text")
        self.task_id = task_id
        self.message_id = message_id


class LeaseLost(Terminal):
    """A write under an epoch that is no longer the task's: nothing was written."""

    code = "lease-lost"
    exit_code = EXIT_CONFLICT
    default_hint = "another worker has resumed the task; this run stops, nothing is lost"

    def __init__(self, *, task_id: str, epoch: int) -> None:
        super().__init__(f"task {task_id}: epoch {epoch} is stale; nothing was written")
        self.task_id = task_id
        self.epoch = epoch


class ScopeBusy(Terminal):
    code = "scope-busy"
    exit_code = EXIT_CONFLICT
    default_hint = "one process holds a scope at a time; close it there, or use another name"


class NotNow(Terminal):
    """A decision before the step is quiet: a request may still be under way."""

    code = "too-early"
    exit_code = EXIT_CONFLICT
    default_hint = "a request may still be under way; decide after that time"


class MovedAway(Terminal):
    """This copy of the agent was moved to another host, or is about to be: it does not run."""

    code = "moved-away"
    exit_code = EXIT_CONFLICT
    default_hint = "start it on the other host; `holdfast migrate cancel` takes a move back"


class MoveRefused(Terminal):
    """The package of a move cannot be taken here: it was taken before, or is not the newest."""

    code = "move-refused"
    exit_code = EXIT_CONFLICT
    default_hint = "nothing was changed; see docs/how-to/move-an-agent.md"


class NotSettleable(Terminal):
    code = "not-settleable"
    exit_code = EXIT_CONFLICT
    default_hint = "only parked steps take a decision; `holdfast effect list` shows them"


class SecretInUse(Terminal):
    """Open steps have recorded that they send this secret."""

    code = "secret-in-use"
    exit_code = EXIT_CONFLICT
    default_hint = "let them end, or give --force: they are parked when they would be sent"


# Terminal: the journal


class NotAJournal(Terminal):
    code = "not-a-journal"
    exit_code = EXIT_JOURNAL
    default_hint = "check the path; Holdfast never overwrites a file it did not make"


class JournalGone(Terminal):
    """A journal of this name was here, and its file is not there any more."""

    code = "journal-gone"
    exit_code = EXIT_JOURNAL
    default_hint = (
        "put the journal's file back (then `holdfast recover --journal FILE` if it is older); "
        "where no copy is left, `holdfast recover --journal FILE --begin-anew`"
    )


class JournalDamaged(Terminal):
    code = "journal-damaged"
    exit_code = EXIT_JOURNAL
    default_hint = (
        "nothing further is begun; keep the file, run `holdfast doctor --deep` to see what is "
        "damaged, then put the newest good copy back with `holdfast recover --journal FILE`"
    )


class JournalNewer(Terminal):
    code = "journal-newer"
    exit_code = EXIT_JOURNAL
    default_hint = "install the newer Holdfast; nothing was changed"


class JournalOlderCopy(Terminal):
    """The file is older than what this machine has already committed."""

    code = "journal-older-copy"
    exit_code = EXIT_JOURNAL
    default_hint = (
        "put the newer file back; if it is lost, `holdfast recover --journal FILE` makes this "
        "a proper restore: effects since the copy are looked up or parked, never repeated blindly"
    )


class JournalStopped(Terminal):
    code = "journal-stopped"
    exit_code = EXIT_JOURNAL
    default_hint = (
        "the disk reported a failed write; the journal is rewritten to a new file when it is next "
        "opened alone; see `holdfast doctor`"
    )


class KeysMissing(Terminal):
    code = "keys-missing"
    exit_code = EXIT_JOURNAL
    default_hint = "put the journal's keys.json back beside it; without it payloads cannot be read"


class KeysWrong(Terminal):
    code = "keys-wrong"
    exit_code = EXIT_JOURNAL
    default_hint = "this keys.json belongs to another journal, or was changed; put the right one back"


class HighWaterDamaged(Terminal):
    """The note of how far this machine's journal had come cannot be read."""

    code = "high-water-damaged"
    exit_code = EXIT_JOURNAL
    default_hint = (
        "without it an old copy of the journal cannot be told from the newest one; if you are sure "
        "that the journal is the newest, `holdfast recover --journal FILE` makes this a restore"
    )


class WitnessDamaged(Terminal):
    """The file of a witness does not say what the witness wrote there."""

    code = "witness-damaged"
    exit_code = EXIT_JOURNAL
    default_hint = (
        "this witness signs nothing more for that agent: it may have forgotten what it saw first; "
        "put its folder back from the newest copy, or name another witness"
    )


class LogDamaged(Terminal):
    """The agent's own copy of its key log, or identity.json, does not read back."""

    code = "log-damaged"
    exit_code = EXIT_JOURNAL
    default_hint = "`holdfast identity show --fetch` writes it anew from what the witnesses hold"


class SecretsDamaged(Terminal):
    code = "secrets-damaged"
    exit_code = EXIT_JOURNAL
    default_hint = (
        "put secrets.sealed back from a copy of the same keys.json; or move it away and set the "
        "secrets again with `holdfast secret set`"
    )


# Terminal: the place


class ReadOnly(Terminal):
    code = "read-only"
    exit_code = EXIT_PLACE
    default_hint = "give this user the right to write there, or choose another folder"


class ModeTooWide(Terminal):
    code = "mode-too-wide"
    exit_code = EXIT_PLACE


class WrongOwner(Terminal):
    code = "wrong-owner"
    exit_code = EXIT_PLACE
    default_hint = "run Holdfast as the owner of its files"


class WrongKind(Terminal):
    """Something else lies where a file or folder of ours should be."""

    code = "wrong-kind"
    exit_code = EXIT_PLACE
    default_hint = "move it away, or choose another folder"


class SymlinkRefused(Terminal):
    code = "symlink-refused"
    exit_code = EXIT_PLACE
    default_hint = "give the real path"


class OpenParent(Terminal):
    """A folder above ours lets every user rename and replace what lies in it."""

    code = "open-parent"
    exit_code = EXIT_PLACE


class NetworkFileSystem(Terminal):
    code = "network-file-system"
    exit_code = EXIT_PLACE
    default_hint = (
        "put the journal on a local disk; locks and syncs of network file systems cannot be "
        "trusted with effects (setting `allow_network_fs`)"
    )


class LocksMissing(Terminal):
    code = "locks-missing"
    exit_code = EXIT_PLACE
    default_hint = "put the journal on a local disk whose file system keeps locks (flock)"


class DiskFailed(Terminal):
    """The disk or file system refused a read or a write that should have worked."""

    code = "disk-failed"
    exit_code = EXIT_PLACE
    default_hint = (
        "the disk or its file system is failing: see the system's log (`dmesg`), save what is on "
        "it; nothing half written counts, and the same command may be run again elsewhere"
    )


class BootIdMissing(Terminal):
    code = "boot-id-missing"
    exit_code = EXIT_PLACE
    default_hint = "mount /proc: leases are counted per start of the machine"


class InvariantViolated(Terminal):
    """A promise of the code itself is broken; the work stops rather than guess."""

    code = "invariant-violated"
    default_hint = "this is a defect of Holdfast: please report it with the output of `holdfast doctor`"

    def __init__(self, name: str, detail: str) -> None:
        super().__init__(f"{name}: {detail}")
        self.name = name


# How a step ended


class StepFailed(Terminal):
    code = "step-failed"
    exit_code = EXIT_FAILED


class Refused(StepFailed):
    """The far end says that it did not happen and will not happen.

    Raised by a tool with the far end's proof; raised again by `run.call` where the step is
    closed as failed. With `retry_after_s` the tool says more: it did not happen now and may be
    asked again after that time, as where a far end limits its rate. It is then sent again, as long
    as the tool's `attempts` last, unless another attempt may have been sent or refusals are stored.
    """

    code = "refused"

    def __init__(
        self, proof: Any = None, *, retry_after_s: float | None = None
    ) -> None:  # Any: whatever JSON the far end answered
        super().__init__(f"refused by the far end: {_shown(proof)}")
        self.proof = proof
        self.retry_after_s = retry_after_s


class ToolFailed(StepFailed):
    """A Read or Transactional tool raised: nothing outside was changed."""

    code = "tool-failed"

    def __init__(self, *, tool: str, kind: str, text: str) -> None:
        super().__init__(f"{tool} raised {kind}: {text}")
        self.tool = tool
        self.kind = kind
        self.text = text


class StepSkipped(StepFailed):
    code = "step-skipped"

    def __init__(self, *, ordinal: str, note: str = "") -> None:
        super().__init__(f"step {ordinal} was skipped by a person" + (f": {note}" if note else ""))
        self.ordinal = ordinal
        self.note = note


class GateRefused(StepFailed):
    """The gate of the task did not let the call through: it was never sent.

    `rule` is allow, arguments, amount, calls or rate; `why` is for people and for models;
    `retry_after_s` says after which time a rate lets the same call through.
    """

    code = "gate-refused"
    default_hint = "the refusal is recorded and stays; another call may pass: docs/how-to/limits.md"

    def __init__(self, *, tool: str, ordinal: str, rule: str, why: str, retry_after_s: float | None = None) -> None:
        later = "" if retry_after_s is None else f"; again in {retry_after_s:g} s"
        super().__init__(f"step {ordinal}: {tool} is refused by the gate: {why}{later}")
        self.tool = tool
        self.ordinal = ordinal
        self.rule = rule
        self.why = why
        self.retry_after_s = retry_after_s


class ScratchNotKept(StepFailed):
    """The step is closed, but the files it left in the scratch folder are not stored."""

    code = "scratch-not-kept"
    default_hint = "the step is not run again; make what it left anew by another call, or go on without it"

    def __init__(self, *, tool: str, ordinal: str, why: str) -> None:
        super().__init__(f"step {ordinal}: the files that {tool} left are lost: {why}")
        self.tool = tool
        self.ordinal = ordinal
        self.why = why


class ResultNotKept(StepFailed):
    """The effect took place, but its result is not a JSON value that can be kept."""

    code = "result-not-kept"
    default_hint = "the step is recorded as succeeded; let the tool return JSON values"

    def __init__(self, *, tool: str, ordinal: str, why: str) -> None:
        super().__init__(f"step {ordinal}: {tool} took effect, but its result is lost: {why}")
        self.tool = tool
        self.ordinal = ordinal
        self.why = why


class DoneWithOtherArguments(StepFailed):
    """The call was not made: before a restore the tool was called in its place, and otherwise.

    `args` is what it was called with (None where the lookup does not say), `result` what came of
    it. Recorded as succeeded: raised again on every replay.
    """

    code = "done-with-other-arguments"
    default_hint = "nothing was sent; make another call if it is wanted beside what was done"

    def __init__(self, *, tool: str, ordinal: str, args: Any, result: Any) -> None:
        told = "arguments that its lookup does not say" if args is None else f"{args!r}"
        super().__init__(
            f"step {ordinal}: before the journal was restored {tool} was called with "
            f"{told[:500]}; it is not called again"
        )
        self.tool = tool
        self.ordinal = ordinal
        self.args_done = args
        self.result = result


class StatementFailed(StepFailed):
    """A Transactional tool's statement was refused by the database; all were undone."""

    code = "statement-failed"


class TaskFailed(Terminal):
    code = "task-failed"
    exit_code = EXIT_FAILED
    default_hint = "`holdfast task show TASK` shows the step and the reason"

    def __init__(self, *, task_id: str, kind: str, text: str) -> None:
        super().__init__(f"task {task_id} failed: {kind}: {text}")
        self.task_id = task_id
        self.kind = kind
        self.text = text


class ResultErased(Terminal):
    """The task ended so long ago that retention has erased its payload."""

    code = "result-erased"
    exit_code = EXIT_NOT_FOUND
    default_hint = "results are kept for `keep_days`; keep what you need longer elsewhere"

    def __init__(self, *, task_id: str, state: str) -> None:
        super().__init__(f"task {task_id} {state}; its result was erased by retention")
        self.task_id = task_id
        self.state = state


class TaskCancelled(Terminal):
    code = "task-cancelled"
    exit_code = EXIT_FAILED

    def __init__(self, *, task_id: str) -> None:
        super().__init__(f"task {task_id} was cancelled")
        self.task_id = task_id


# Unresolved


class NotSent(Unresolved):
    """No byte of the request left this machine: the step may simply run again."""

    code = "not-sent"

    def __init__(self, reason: str = "no byte was sent") -> None:
        super().__init__(reason)


class Busy(Unresolved):
    """The far end is still working on this effect key, or asks to come back later."""

    code = "busy"

    def __init__(self, retry_after_s: float = 1.0, *, kind: str = "", text: str = "") -> None:
        super().__init__(f"the far end is busy with this effect key; again in {retry_after_s:g} s")
        self.retry_after_s = retry_after_s
        self.kind = kind  # which error of the far end, and its words, for the record
        self.text = text


class KeyReused(Unresolved):
    """The far end has seen this effect key with another body."""

    code = "key-reused"
    default_hint = "something was done under this key in another timeline; it is looked up or parked"

    def __init__(self, proof: Any = None) -> None:  # Any: whatever JSON the far end answered
        super().__init__(f"the far end knows this effect key with another body: {_shown(proof)}")
        self.proof = proof


class HttpUnknown(Unresolved):
    code = "http-unknown"


class ReplyGarbled(Unresolved):
    """A model's reply came and cannot be used: it is never recorded as one.

    `reason` is cut, garbage, empty or too-large. Asking again is safe, and is paid again.
    """

    code = "reply-garbled"
    default_hint = "the request is sent again; what came of the reply was thrown away"

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.failures: tuple[dict[str, object], ...] = ()


class AttemptTimedOut(Unresolved):
    code = "attempt-timed-out"

    def __init__(self, *, tool: str, timeout_s: float) -> None:
        super().__init__(f"{tool}: no outcome within {timeout_s:g} s")
        self.tool = tool
        self.timeout_s = timeout_s


class ChildDied(Unresolved):
    code = "child-died"


class ToolRaised(Unresolved):
    """A blocking tool raised something that says nothing about its effect.

    Stands for the exception, which stays in the child: `kind` is its class, `text` its message,
    `error_code` its code where it was an error of ours.
    """

    code = "tool-raised"

    def __init__(self, *, tool: str, kind: str, text: str, error_code: str = "") -> None:
        super().__init__(f"{tool} raised {kind}: {_shown(text)}")
        self.tool = tool
        self.kind = kind
        self.text = text
        self.error_code = error_code


class TaskParked(Unresolved):
    code = "task-parked"

    def __init__(self, *, task_id: str, ordinal: str, question: str) -> None:
        where = f"task {task_id}" + (f" step {ordinal}" if ordinal else "")
        if ordinal:
            look, act = f"effect show {task_id}/{ordinal}", f"effect settle {task_id}/{ordinal}"
        else:
            look, act = f"task show {task_id}", f"task retry {task_id}"
        super().__init__(
            f"{where} is parked: {question}", hint=f"`holdfast {look}` shows the evidence, `holdfast {act}` goes on"
        )
        self.task_id = task_id
        self.ordinal = ordinal
        self.question = question


class TaskUnfinished(Unresolved):
    code = "task-unfinished"
    exit_code = EXIT_RETRY
    default_hint = "the task goes on; wait longer, or see `holdfast task show TASK`"


# Signals: never caught by `except Exception`


class Signal(BaseException):
    """Control flow of the runtime. Agent code must let it pass."""


class Fenced(Signal):
    """This run's epoch is stale or its session is over; it may not act any more."""


class Suspended(Signal):
    """The run ends here for now; the journal says why (sleeping, waiting, parked)."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Cancelled(Signal):
    """The task was cancelled by a person or a caller."""


def text_of(error: BaseException) -> str:
    """The message of any exception, also of one whose own code for it fails."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - user code may raise anything here too
        text = "(its message cannot be shown)"
    return text.encode(errors="replace").decode()


_SHOWN_CHARS_MAX = 300


def _shown(value: object) -> str:
    text = str(value)
    return text if len(text) <= _SHOWN_CHARS_MAX else text[:_SHOWN_CHARS_MAX] + "..."
