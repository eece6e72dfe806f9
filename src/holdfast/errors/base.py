"""The tree of all errors, the kinds they are of, and the exit codes of the command line.

    Exception
     +- HoldfastError                code, exit_code, hint; the class says whether to try again
         +- Retryable                the same call may succeed later; nothing was done
         |   +- JournalBusy          another process holds the write lock
         |   +- JournalFull          no space; no new step begins until there is
         |   +- SessionLost          this process's lease is over
         |   +- CommitUnknown        the journal cannot say whether the write is durable
         |   +- DiskFull             no space for a file that is not the journal's
         |   +- MemoryFileBusy       another program keeps changing a memory file
         |   +- PlaceMissing, PlaceUnreachable, PlaceFull, RepositoryLocked, BackupInterrupted, BackupBusy
         |   +- SignerUnavailable    no signer process answers at its socket
         |   +- AgentElsewhere       another instance of the agent holds its lease
         |   +- NotFinal             too few witnesses confirm a record; sent again, it may pass
         |   +- RelayUnreachable, RelayBusy   a relay did not answer, or refuses for now
         |   +- MailUnsent           no byte of a message left this process
         |   +- ModelUnavailable     no endpoint of a model gave a reply; the same request may later
         |       +- ModelRateLimited, ModelOverloaded
         +- Terminal                 trying again changes nothing
         |   +- BadUsage             BadInput (BadEvent, BadRecord), BadValue, TooLarge, BadApp, BadSettings,
         |   |                       BadReference, NotDurable, StepOpen, ToolNotImportable, Misuse, NoSchema,
         |   |                       BadSecret, SecretInInput, StateHeldElsewhere, BadPlace, BadPhrase, BadShare,
         |   |                       BadSheet, BadKeyFile, ScratchRefused, ScratchTooLarge, ScratchChanging,
         |   |                       ReportInvalid, BadUpdate
         |   +- NotFound             TaskNotFound, StepNotFound, ApprovalNotFound, BlobNotFound, SecretNotFound,
         |   |                       PlaceNotFound, SnapshotNotFound, NotAnAgent, NoHandoff, LogMissing, ResultErased,
         |   |                       RescueKeyNotFound
         |   +- Conflict             RequestConflict, MessageConflict, LeaseLost, ScopeBusy, NotNow, NotSettleable,
         |   |                       SecretInUse, AgentExists, VaultExists, MovedAway, MoveRefused, KeysReplaced,
         |   |                       SignerRefused, AgentQuarantined, RescuedCopy, PlaceTaken, RepositoryMoved,
         |   |                       SnapshotExists, SnapshotsMissing, PruneRefused, RelayRefused (RelayNotAdmitted),
         |   |                       MailRefused, MailKeyReused, HistoryMissing, UpdateRefused,
         |   |                       UpdateNewer
         |   +- StateUnusable        JournalDamaged, JournalNewer, JournalOlderCopy, RowsPutBack, JournalStopped,
         |   |                       JournalGone, NotAJournal, KeysMissing, KeysWrong, HighWaterDamaged, SecretsDamaged,
         |   |                       WitnessDamaged, LogDamaged, InstanceDamaged, ArbiterDamaged, VaultMissing,
         |   |                       VaultLocked, VaultDamaged, PassphraseRefused, RepositoryRolledBack,
         |   |                       RepositoryReplaced, RepositoryKeyMissing, RepositoryDamaged, SnapshotIncomplete,
         |   |                       BackupDamaged, ArchiveRefused, RelayUntrusted, MailUnreadable
         |   +- HostUnfit            ReadOnly, ModeTooWide, WrongOwner, WrongKind, SymlinkRefused, OpenParent,
         |   |                       NetworkFileSystem, LocksMissing, BootIdMissing, DiskFailed, JournalRefused,
         |   |                       EngineMissing, EngineTooOld, PlaceRefused, SnapshotFailed, BackupFailed,
         |   |                       ShadowRefused, RelayUnfit, InstancesUnfit
         |   +- ModelRejected        the provider rejects the request
         |   |   +- ContextTooLong, ModelKeyRefused, ModelNotFound, ModelQuotaSpent
         |   +- ModelRefused         the model itself declines
         |   +- InvariantViolated    a promise of the code itself is broken: the work stops
         |   +- StepFailed           a step is closed as failed; the task's code may handle it
         |   |   +- Refused          the far end says it did not and will not happen
         |   |   +- ToolFailed       a Read or Transactional tool raised
         |   |   +- StatementFailed  the database refused a Transactional tool's statement
         |   |   +- StepSkipped      a person decided that the step is not done
         |   |   +- GateRefused      the task's gate did not let the call through
         |   |   +- ScratchNotKept, ResultNotKept   it took effect; its files or its result could not be stored
         |   |   +- DoneWithOtherArguments   done before a restore, with other arguments than now
         |   +- TaskFailed, TaskCancelled   how a task ended, for the caller who waits for it
         +- Unresolved               an effect or a task that reconcile or a person must settle
             +- NotSent              no byte was sent (a tool says so)
             +- Busy                 the far end still works on this effect key (a tool says so)
             +- KeyReused            the far end has used this effect key with another body
             +- HttpUnknown          the request was sent and no usable answer came
             +- ReplyGarbled         a model's reply was cut, empty, too long or not understood
             +- ChildDied, AttemptTimedOut   a blocking tool's process died; the deadline passed
             +- ToolRaised           a blocking tool raised in its own process
             +- MailUnconfirmed      sent, and too few relays have confirmed that they hold it
             +- TaskParked           the task needs a person
             +- NotProven            a drill that could not run
             +- TaskUnfinished       a wait ended before the task did
    BaseException
     +- Signal                       control flow that `except Exception` must not swallow
         +- RunFenced                another run holds a newer epoch: stop at once
         +- Suspended                the run ends here for now (sleeping, waiting, parked)
         +- Cancelled                the task was cancelled

Messages say what was tried, on what, and what happened; ids in full, no secrets. Every class below HoldfastError with a
code has a section in docs/reference/errors.md, made from its docstring, headed by its code.
"""

from __future__ import annotations

from typing import ClassVar

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
        if self.hint:
            self.add_note(f"hint: {self.hint}")  # a program that does not catch it shows it too

    @property
    def page(self) -> str:
        """The section of the documents that explains this error."""
        return f"docs/reference/errors.md#{self.code}"

    @property
    def explained_by(self) -> str:
        """The command that prints that section, also where there are no documents."""
        return f"holdfast explain {self.code}"


class Retryable(HoldfastError):
    exit_code = EXIT_RETRY


class Terminal(HoldfastError):
    pass


class Unresolved(HoldfastError):
    exit_code = EXIT_UNRESOLVED


class BadUsage(Terminal):
    """The caller's words, values, code or settings cannot be taken."""

    exit_code = EXIT_USAGE


class NotFound(Terminal):
    """What was named does not exist."""

    exit_code = EXIT_NOT_FOUND


class Conflict(Terminal):
    """It contradicts what is recorded, or comes too early."""

    exit_code = EXIT_CONFLICT


class StateUnusable(Terminal):
    """A journal, key, vault, log or backup is damaged, locked, missing or not the right one."""

    exit_code = EXIT_JOURNAL


class HostUnfit(Terminal):
    """The disk, a folder, a program or the machine is not fit for it."""

    exit_code = EXIT_PLACE


class InvariantViolated(Terminal):
    """An internal rule of Holdfast is broken, so Holdfast stops and does not guess. This is a defect."""

    code = "invariant-violated"
    default_hint = "this is a bug in Holdfast: please report it with the output of `holdfast doctor`"

    def __init__(self, name: str, detail: str) -> None:
        super().__init__(f"{name}: {detail}")
        self.name = name


class BadInput(BadUsage):
    """An argument, an option or a file cannot be used. The message says which one and why; `--help` shows what the
    command takes."""

    code = "bad-input"


class BadValue(BadUsage):
    """An argument or result is not a JSON value that can be stored exactly.
    Examples: NaN, infinity, a whole number beyond 64 bits, text with a lone surrogate, a Python object, more than 200
    levels. The message says where in the value it is. Pass large whole numbers as text, bytes through a blob."""

    code = "bad-value"
    default_hint = "pass JSON values: objects with text keys, lists, text, finite numbers, true, false, null"


class TooLarge(BadUsage):
    """Arguments or a result have more than 16 MiB of JSON, or a value is over another limit that the message names."""

    code = "too-large"
    default_hint = "put large contents into a blob or a file, and pass a reference to it"


class Misuse(BadUsage):
    """The library was called in a way that cannot work. Examples: wrong arguments for a task or tool, a contract that
    cannot be kept, a value out of range. The message says what is wrong."""

    code = "misuse"


def text_of(error: BaseException) -> str:
    """The message of any exception, also of one whose own code for it fails."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - user code may raise anything here too
        text = "(its message cannot be shown)"
    return text.encode(errors="replace").decode()
