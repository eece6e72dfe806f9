"""Identity: records and logs, witnesses, the phrase on paper, the vault, the signer, instances."""

from __future__ import annotations

from holdfast.errors.base import BadInput, BadUsage, Conflict, NotFound, Retryable, StateUnusable


class BadRecord(BadInput):
    """Bytes that are no identity record: wrong form, unknown field, impossible value."""

    code = "bad-record"
    default_hint = "nothing was taken from it; ask another relay, or whoever sent it, for the log"


class NotFinal(Retryable):
    """A record was sent, and too few witnesses vouch for it. It is kept and sent again."""

    code = "not-final"
    default_hint = "run the same command again when the witnesses can be reached; it goes on there"


class LogMissing(NotFound):
    """The folder holds no key log, or no identity.json, of an agent."""

    code = "log-missing"
    default_hint = (
        "an agent whose set-up was cut short is finished by the same `holdfast init`; one whose "
        "home is lost comes back by `holdfast identity recover`"
    )


class LogDamaged(StateUnusable):
    """The agent's own copy of its key log, or identity.json, does not read back."""

    code = "log-damaged"
    default_hint = "`holdfast identity show --fetch` writes it anew from what the witnesses hold"


class WitnessDamaged(StateUnusable):
    """The file of a witness does not say what the witness wrote there."""

    code = "witness-damaged"
    default_hint = (
        "this witness signs nothing more for that agent: it may have forgotten what it saw first; "
        "put its folder back from the newest copy, or name another witness"
    )


class KeysReplaced(Conflict):
    """The log names other operational keys than those that this vault holds."""

    code = "keys-replaced"
    default_hint = "the keys were rotated elsewhere: use the vault that was rotated, or evict with the paper"


class SignerUnavailable(Retryable):
    code = "signer-unavailable"
    default_hint = "start `holdfast identity signer`; nothing was signed"


class SignerRefused(Conflict):
    """The signer process does not do what was asked, or not for this user."""

    code = "signer-refused"
    default_hint = "its log says why; `holdfast identity signer --help` says whom it answers"


class AgentElsewhere(Retryable):
    """Another instance holds the agent's lease: this one may not act."""

    code = "agent-elsewhere"
    default_hint = "it is asked for again; stop the other instance, or let it yield"


class AgentQuarantined(Conflict):
    """This folder may not act as the agent: a copy, one left behind, or one that is frozen."""

    code = "agent-quarantined"
    default_hint = "see docs/explanation/clones.md; nothing was sent"


class InstanceDamaged(StateUnusable):
    code = "instance-damaged"
    default_hint = "remove the file: a new key is made, and the folder counts as a copy"


class ArbiterDamaged(StateUnusable):
    code = "arbiter-damaged"
    default_hint = "an arbiter that forgot grants nothing: put its folder back, or rotate the keys"


class BadPhrase(BadUsage):
    """Words that are no recovery phrase, or not the one that is looked for; never shown."""

    code = "bad-phrase"
    default_hint = "read the words from the sheet again: 24 words, four letters of each are enough"


class BadShare(BadUsage):
    """Shares of a phrase that cannot be joined.

    `reason` is damaged, mixed, few, duplicate or other; `number` the place of the share among
    those that were given, 0 where it is about all of them.
    """

    code = "bad-share"
    default_hint = "read the share from its sheet again: 33 words, four letters of each are enough"

    def __init__(self, message: str, *, reason: str, number: int = 0, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.reason = reason
        self.number = number


class BadSheet(BadUsage):
    """A text or code that is no recovery sheet and no public card of this version."""

    code = "bad-sheet"
    default_hint = "scan the code again, or type the words that stand beside it"


class BadKeyFile(BadUsage):
    """A file that should hold a signing key to import does not."""

    code = "bad-key-file"
    default_hint = (
        "an OpenSSH private key of type ed25519, or a seed of 32 bytes (64 with the public half "
        "behind it); other kinds of keys cannot speak for an agent"
    )


class VaultMissing(StateUnusable):
    code = "vault-missing"
    default_hint = "mount or put back the vault's folder"


class VaultExists(Conflict):
    code = "vault-exists"
    default_hint = "choose another folder; a vault is never written over"


class VaultLocked(StateUnusable):
    """No slot of the vault could be opened with what was given."""

    code = "vault-locked"
    default_hint = "give the passphrase, or mount the file that the unattended slot names"


class VaultDamaged(StateUnusable):
    """A file of the vault was changed, is malformed, or asks for what we refuse to do."""

    code = "vault-damaged"
    default_hint = "put the file back from a copy; escrow.age lies beside every backup"
