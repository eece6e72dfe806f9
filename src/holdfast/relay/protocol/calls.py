"""What goes with the calls about mail, and what comes back. All answers are signed as a whole (`relay_answer.py`).

An answer about a mailbox names the mailbox and what it is, so that it says the same to everyone who reads it later: the
signed line with its content is evidence. `stored` says which number an envelope got and what the chain's head was then;
`mail` lists entries of the chain. If two answers of one relay give one number to different envelopes, or have different
heads after it, the relay has contradicted itself, whatever it says.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from holdfast.identity.records.encodings import ID_CHARS, ID_PREFIX, Digest, PublicKey
from holdfast.identity.records.fields import Fields, of, record, text
from holdfast.identity.records.records import AtPosition
from holdfast.identity.statements.relay_answer import NONCE_FORM

SUBMIT_MAX = 64  # envelopes in one request
ACK_MAX = 1_024  # entries in one request
CONTACTS_MAX = 10_000
REASON_CHARS_MAX = 200
HANDLE_FORM = r"[a-z0-9](?:[a-z0-9._-]{0,62}[a-z0-9])?"
HANDLES_MAX = 4  # of one agent at one relay
TOKEN_HEADER = "holdfast-session"
WAIT_S_MAX = 25
PAGE_BYTES_MAX = 512 * 1024  # of envelopes in one answer
PAGE_MAX = 256  # entries in one answer

NUMBER_MAX = (1 << 53) - 1  # exact in every JSON reader, and far below what SQLite takes
Seq = Annotated[int, msgspec.Meta(ge=1, le=NUMBER_MAX)]
Mark = Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)]
Contact = Annotated[
    str, msgspec.Meta(pattern=f"^{ID_PREFIX}1[02-9ac-hj-np-z]+$", min_length=ID_CHARS, max_length=ID_CHARS)
]
Token = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_-]{1,128}\Z")]  # of a session; it goes into a header
EntryId = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$")]  # of the envelope, as the relay lists it


# refusals of one envelope; those below are for good: the relay does not hold it and will not
UNKNOWN_RECIPIENT = "unknown-recipient"
NOT_A_CONTACT = "not-a-contact"
MALFORMED = "malformed"
REFUSED = "refused"  # by the recipient, who has read it
FOR_NOW = "for now: "  # begins the reason of a recipient that could use the message if it were sent again
KEY_REUSED = "key-reused"  # it has another message of this sender with this key
FOR_GOOD = (UNKNOWN_RECIPIENT, NOT_A_CONTACT, MALFORMED, REFUSED)
# these may pass later, or elsewhere
UNKNOWN_SENDER = "unknown-sender"  # bring the log: POST /v1/senders/{id}
BAD_CERTIFICATE = "bad-certificate"
MOVED = "moved"  # the answer has the newer profile
QUOTA = "quota"
STORAGE_FULL = "storage-full"
RATE = "rate"
FENCED = "fenced"
NO_SESSION = "no-session"
SECOND_INSTANCE = "second-instance"  # a newer one, of the same incarnation, gets the mail; `proof` is its certificate


class StoredItem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of one envelope: `seq`, `head` and `at`, or `code`."""

    id: str  # hex
    seq: Mark = 0
    head: str = ""  # hex; of the chain after it
    at: int = 0  # unix seconds
    code: str = ""
    message: str = ""
    wait_s: int = 0
    proof: str = ""  # of `key-reused`: the message that the mailbox has, in base64, while the relay has its words


class StoredAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="t", tag="stored"):
    to: str
    items: tuple[StoredItem, ...]
    rank: tuple[int, int, int] | None = None  # of the recipient's newest profile here
    profile: str = ""  # that profile, if the recipient has left this relay


class MailItem(msgspec.Struct, frozen=True, array_like=True):
    """An entry of the chain; `envelope` is empty if it is held, or gone (secured, expired, refused)."""

    seq: Seq
    id: bytes
    at: int
    envelope: bytes = b""


class MailAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="t", tag="mail"):
    """MessagePack. Entries after `after`, in order and without a gap."""

    to: str
    after: Mark
    head: bytes  # of the chain after the entry `after`
    items: tuple[MailItem, ...]
    last: Mark  # the newest number of the mailbox
    other: str = ""  # the certificate of an older instance of this incarnation, which has called since


@record
class Login(AtPosition):
    """Signed by the instance key of the certificate, for one nonce of one relay."""

    KIND = "lgn"
    wit: PublicKey = of(Fields.key)
    nonce: str = of(text(form=NONCE_FORM))
    crt: Digest = of(Fields.digest)


class LoginAnswer(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", tag="login"):
    to: str
    token: Token
    e: Mark  # the highest incarnation seen
    first: Seq  # the lowest number that waits; `last` + 1 if none does
    last: Mark
    head: str  # hex; of the chain after `last`
    expires_s: int


class Ack(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Each part is optional; they are done in this order, in one act.

    An entry is named by its number and its envelope's id: after a relay was put back to an older day, another envelope
    may have that number, and the agent has not seen it. An entry that is not there under both changes nothing."""

    rewind: Mark | None = None  # deliver held mail with a higher mark again
    received: Annotated[tuple[tuple[Seq, EntryId], ...], msgspec.Meta(max_length=ACK_MAX)] = ()
    mark: Mark = 0  # goes with `received`
    # unreadable, and why
    refused: Annotated[tuple[tuple[Seq, EntryId, str], ...], msgspec.Meta(max_length=ACK_MAX)] = ()
    secured: Mark | None = None  # delete held mail up to this mark
    contacts: Annotated[tuple[Contact, ...], msgspec.Meta(max_length=ACK_MAX)] = ()  # their mail has the large quota


class AckAnswer(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", tag="ack"):
    to: str
    waiting: Mark
    held: Mark
    full: Mark  # percent of the room for mail that is used; at 100 new mail is refused
    first: Seq
