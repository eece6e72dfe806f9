"""Identity: records and logs, witnesses, the phrase on paper, the vault, the signer, instances."""

from __future__ import annotations

from holdfast.errors.base import BadInput, BadUsage, Conflict, NotFound, Retryable, StateUnusable


class BadRecord(BadInput):
    """Bytes that should be a record of the identity log are not: not canonical, an unknown field, an impossible value,
    a repeated key, too long. Nothing was taken from them. See docs/formats/identity-log.md."""

    code = "bad-record"
    default_hint = "Holdfast did not use the record; get a new copy from its sender, or from another witness"


class NotFinal(Retryable):
    """A record of the key log was sent, and too few witnesses have signed for it; the message says which did not, and
    why. Its keys are safe, the record is kept in `pending.jsonl`, and the old keys stay valid until it is final. If
    witnesses are lost for good, a recovery may name new ones."""

    code = "not-final"
    default_hint = (
        "run the same command again when the witnesses can be reached, or with another --invite if a relay refuses "
        "this one; it continues where it stopped"
    )


class LogMissing(NotFound):
    """The folder has no `kel.jsonl` or no `identity.json`."""

    code = "log-missing"
    default_hint = (
        "if `holdfast init` was interrupted, run it again; if the agent's folder is lost, run `holdfast identity "
        "recover`"
    )


class LogDamaged(StateUnusable):
    """The agent's copy of its key log, or `identity.json`, was changed, cut in the middle, or belongs to another agent.
    Holdfast signs nothing based on it. An unfinished last line is not damage."""

    code = "log-damaged"
    default_hint = "`holdfast identity show --fetch` writes it again from the copies of the witnesses"


class WitnessDamaged(StateUnusable):
    """The file in which a witness keeps what it saw first was changed or cut. It signs nothing more for that agent,
    because a second receipt for one position would make receipts worthless."""

    code = "witness-damaged"
    default_hint = (
        "this witness signs nothing more for that agent: it may no longer know which record came first. Put its folder "
        "back from the newest copy, or name another witness"
    )


class KeysReplaced(Conflict):
    """The key log names other keys than this vault holds: they were rotated elsewhere, by you or by a thief of the next
    key. If it was you, use the vault that was rotated; if not, recover with the paper. A worker ends with this error
    when it sees that the agent was recovered elsewhere (docs/explanation/clones.md)."""

    code = "keys-replaced"
    default_hint = (
        "if you rotated the keys elsewhere, use the vault that has the new keys; if you did not, a thief may have: run "
        "`holdfast identity evict --paper`"
    )


class SignerUnavailable(Retryable):
    """No process answers at the socket that `[identity] signer` names, or the answer broke off. Nothing was signed. A
    worker asks again by itself."""

    code = "signer-unavailable"
    default_hint = "start `holdfast identity signer`; nothing was signed"


class SignerRefused(Conflict):
    """The signer does not do what was asked: it does not serve this user, the request is unknown, or there were too
    many."""

    code = "signer-refused"
    default_hint = "the signer's log says why; `holdfast identity signer --help` says which users it serves"


class AgentElsewhere(Retryable):
    """Another instance of this agent holds its lease, so this one may not act. A worker waits and asks again;
    `holdfast.open` gives up after one lease. See docs/explanation/clones.md."""

    code = "agent-elsewhere"
    default_hint = "Holdfast asks for the lease again by itself; to act here sooner, stop the other instance"


class AgentQuarantined(Conflict):
    """This folder may not act as the agent: it is a copy, another instance acted since, an older state was put back, or
    two copies of its instance key were seen."""

    code = "agent-quarantined"
    default_hint = "see `holdfast explain clones`; nothing was sent"


class InstanceDamaged(StateUnusable):
    """`instance/key.json` cannot be read. After you remove it, the folder counts as a copy until you run
    `holdfast recover --journal` in it."""

    code = "instance-damaged"
    default_hint = (
        "remove the file; Holdfast then makes a new key. This folder counts as a copy, which does not act, until you "
        "run `holdfast recover --journal FILE` in it"
    )


class ArbiterDamaged(StateUnusable):
    """A file of the arbiter's folder was changed or cut short. The arbiter grants nothing, because it may have
    forgotten what it granted."""

    code = "arbiter-damaged"
    default_hint = "put the arbiter's folder back, or run `holdfast identity rotate`; until then no copy may act"


class BadPhrase(BadUsage):
    """The words are not a recovery phrase, or not the right one, and have more than one mistake. The message shows
    positions, never words."""

    code = "bad-phrase"
    default_hint = "read the words from the sheet again: 24 words, the first four letters of each are enough"


class BadShare(BadUsage):
    """Shares of a phrase cannot be combined: one is damaged or from another split, or there are too few. Sheets that
    belong together show the same document. `reason` is damaged, mixed, few, duplicate or other; `number` is the
    position of the share among those given, 0 if it is about all of them."""

    code = "bad-share"
    default_hint = "read the share from its sheet again: 33 words, the first four letters of each are enough"

    def __init__(self, message: str, *, reason: str, number: int = 0, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.reason = reason
        self.number = number


class BadSheet(BadUsage):
    """A text or code is not a recovery sheet or public card of this version."""

    code = "bad-sheet"
    default_hint = "scan the code again, or type the words printed next to it"


class BadKeyFile(BadUsage):
    """The file given to `--import-key` is not an OpenSSH private key of type ed25519 and not a seed, or its passphrase
    is wrong. Nothing was made."""

    code = "bad-key-file"
    default_hint = (
        "use an OpenSSH private key of type ed25519, or a file with a seed of 32 bytes (or 64 bytes: the seed, then "
        "its public key); no other kind of key works"
    )


class RescueKeyNotFound(NotFound):
    """The agent has no rescue key of that name."""

    code = "rescue-key-not-found"
    default_hint = "`holdfast rescue list` shows the rescue keys of this agent"


class VaultMissing(StateUnusable):
    """`keys.json` says that the keys are in a vault, and there is no vault at that path. If it is lost for good, the
    escrow file beside a backup and the recovery sheet open the same keys."""

    code = "vault-missing"
    default_hint = "mount the vault's folder, or put it back"


class VaultExists(Conflict):
    """There is already a vault, or something else, at that path."""

    code = "vault-exists"
    default_hint = "choose another folder; Holdfast never overwrites a vault"


class VaultLocked(StateUnusable):
    """No slot of the vault opened: the passphrase is wrong, or the file of the unattended slot is not mounted.
    The message names the vault and what was tried for each slot. Otherwise only the paper opens the vault
    (docs/how-to/recovery.md)."""

    code = "vault-locked"
    default_hint = "give the passphrase, or mount the file that unlocks the vault"


class VaultDamaged(StateUnusable):
    """A file of the vault was changed or cut short, or asks for something that Holdfast rejects before any work (a key
    derivation beyond the limits, a passphrase recipient in an age file)."""

    code = "vault-damaged"
    default_hint = "put the file back from a copy; escrow.age is stored next to every backup"
