"""What a relay signs: that this is its answer to this request.

A body of an answer is one signed line, a line feed, and the content:

    {"b":{"ask":d,"at":unix,"body":d,"st":200,"t":"ran","v":1,"wit":K},"sig":[[K,"..."]]}\n
    content

`ask` is the digest of what was asked: method, target, nonce and body of the request. The asker draws the nonce, so an
old answer of the relay is no answer to a new question, and an answer to one request is none to another. `body` is the
digest of the content. A relay that refuses before it has read the body of the request signs for an empty one: the
nonce says which request it was. `wit` is the relay's key, which the asker has pinned: the channel (TLS, proxies, DNS)
may carry the answer, drop it or delay it, and can change nothing in it.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from holdfast.errors import BadRecord
from holdfast.identity.records.canonical import LINE_BYTES_MAX
from holdfast.identity.records.ed25519 import Signatures, Signer
from holdfast.identity.records.encodings import Digest, PublicKey, digest_of, key_bytes, signature_bytes, signature_text
from holdfast.identity.records.fields import Body, Fields, of, record, whole
from holdfast.identity.records.signed import Family, find_bad_signature, message, read_line

NONCE_HEADER = "holdfast-nonce"
INVITE_HEADER = "holdfast-invite"
NONCE_FORM = r"[A-Za-z0-9_-]{16,86}"


_BODY = b'{"ask":"%b","at":%d,"body":"%b","st":%d,"t":"ran","v":1,"wit":"%b"}'
_LINE = re.compile(
    rb'\{"b":(\{"ask":"([a-z2-7]{52})","at":(?:0|[1-9][0-9]{0,14}),"body":"([a-z2-7]{52})","st":([0-9]{3}),'
    rb'"t":"ran","v":1,"wit":"(\w{48})"\}),"sig":\[\["(\w{48})","([\w-]{86})"\]\]\}',
    re.ASCII,
)


@record
class RelayAnswer(Body):
    KIND = "ran"
    wit: PublicKey = of(Fields.key)
    ask: Digest = of(Fields.digest)
    st: int = of(whole(least=100, most=599))  # the HTTP status: an answer cannot be passed off as another one
    body: Digest = of(Fields.digest)
    at: int = of(whole())  # unix seconds on the relay's clock; nothing is decided by it


def digest_of_request(method: str, target: str, nonce: str, body: bytes) -> Digest:
    """`target` is path and query, as they are sent. The parts cannot run into each other: none before the body can hold
    a line feed."""
    return digest_of(b"\n".join((method.encode(), target.encode(), nonce.encode(), body)))


def signed_answer(*, ask: Digest, status: int, content: bytes, now: int, signer: Signer) -> bytes:
    """The whole body of the answer. The line is written out, and read below by its form: both are done for every
    request, and cost a fifth of what records of any kind cost. It is the same line."""
    body = _BODY % (ask.encode(), now, digest_of(content).encode(), status, signer.public.encode())
    signature = signature_text(signer.sign(message(Family.RELAY, body)))
    return b'{"b":%b,"sig":[["%b","%b"]]}\n%b' % (body, signer.public.encode(), signature.encode(), content)


def _is_answer(
    plain: re.Match[bytes], asks: Collection[Digest], status: int, key: PublicKey, content: bytes, port: Signatures
) -> bool:
    """Whether all is well with a line of the usual form. If not, reading it as any record says why."""
    body, ask, digest, st, wit, signer = plain.groups()[:6]
    expected = (key.encode(), key.encode(), b"%d" % status, digest_of(content).encode())
    if (wit, signer, st, digest) != expected or ask.decode() not in asks:
        return False
    return port.verifies(key_bytes(key), message(Family.RELAY, body), signature_bytes(plain[7].decode()))


def read_answer(raw: bytes, *, asks: Collection[Digest], status: int, key: PublicKey, port: Signatures) -> bytes:
    """The content of an answer of this relay to this request. Raises BadRecord for anything else."""
    line, found, content = raw[: LINE_BYTES_MAX + 1].partition(b"\n")
    if not found:
        raise BadRecord("the answer does not begin with a signed line")
    content = raw[len(line) + 1 :]
    plain = _LINE.fullmatch(line)
    if plain is not None and _is_answer(plain, asks, status, key, content, port):
        return content
    signed = read_line(line, RelayAnswer, "a relay's answer")
    answer = signed.record
    if answer.wit != key or not signed.signatures:
        raise BadRecord(f"the answer is signed by {answer.wit}, but the relay's key is {key}")
    fault = find_bad_signature(signed, Family.RELAY, (key,), port)
    if fault is not None:
        raise BadRecord(fault.message)
    if answer.ask not in asks or answer.st != status:
        raise BadRecord("it is the relay's answer to another request")
    if answer.body != digest_of(content):
        raise BadRecord("the content is not the one that the relay signed")
    return content
