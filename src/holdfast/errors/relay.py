"""Relays: reaching one, believing it, and what it refuses."""

from __future__ import annotations

from holdfast.errors.base import Conflict, HostUnfit, Retryable, StateUnusable, Unresolved


class RelayUnreachable(Retryable):
    """No answer came from a relay: its name is unknown, nothing listens, TLS failed, or the time was up. Nothing can be
    concluded from it; an agent whose relays do not answer continues."""

    code = "relay-unreachable"
    default_hint = "`holdfast relay doctor` asks all relays of the agent and says which of them answer"


class RelayUntrusted(StateUnusable):
    """What answered at the address of a relay is not signed by the relay's key, which its address has after `#`.
    Holdfast used nothing of the answer. Either the relay has a new key, or another server answers in its name. Or the
    relay signed an answer that is about another agent than the one it was asked for."""

    code = "relay-untrusted"
    default_hint = (
        "compare the key after # with the one that `holdfast relay serve` prints at its start; if the relay has a new "
        "key, it is a new witness: name it with `identity rotate --witness`"
    )


class RelayBusy(Retryable):
    """The relay refuses for now: too many requests, no space left, or it is stopping. The message may say how
    long to wait."""

    code = "relay-busy"
    default_hint = "wait a minute, or as long as the message says; then run the same command again"


class RelayRefused(Conflict):
    """The relay answered, and does not do what was asked. The message gives its reason."""

    code = "relay-refused"
    default_hint = "the message gives the relay's reason; `holdfast explain relay-protocol` lists all of them"


class RelayNotAdmitted(RelayRefused):
    """The relay does not know this agent, and registers only agents that bring an invite of its operator."""

    code = "relay-not-admitted"
    default_hint = "ask the relay's operator for an invite (`holdfast relay invite`), and give it with --invite FILE"


class RelayUnfit(HostUnfit):
    """The relay server cannot start here: the packages of the extra `relay` are missing, its folder belongs to another
    relay process, or its settings contradict each other."""

    code = "relay-unfit"


class MailUnsent(Retryable):
    """No byte of the message left this process: the recipient's relays are not known, or none could be reached."""

    code = "mail-unsent"
    default_hint = "`holdfast relay find NAME` shows whether the recipient can be found; then send it again"


class MailUnconfirmed(Unresolved):
    """The message was sent, and fewer relays than needed have confirmed that they hold it. It may be delivered. Sent
    again under the same key, it is the same message."""

    code = "mail-unconfirmed"
    default_hint = "send it again under the same key; the recipient handles it once"


class MailUnreadable(StateUnusable):
    """A message for this agent cannot be read: no mail key here opens it, its sender did not sign it, or the sender's
    keys were replaced because they were stolen or lost. The relays no longer hold it."""

    code = "mail-unreadable"
    default_hint = "ask the sender to send it again; `holdfast mail dead` lists such messages"


class MailKeyReused(Conflict):
    """A relay already has a message of this agent under this effect key, with other words: it has shown that message,
    or two relays say so. A relay that did not have it may have taken the new words; the recipient handles one of both.
    This happens after a restore, if the lost timeline sent other words from the same step."""

    code = "mail-key-reused"
    default_hint = "`holdfast effect show` shows the step; decide whether the first message will do"


class MailRefused(Conflict):
    """Every relay of the recipient has refused the message for good, so none holds it. The message gives the reasons:
    the relay does not know the recipient, its mailbox takes no mail from strangers, or the message is too large."""

    code = "mail-refused"
