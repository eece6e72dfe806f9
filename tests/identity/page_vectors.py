"""The test vectors of docs/formats/identity-log.md and relay-protocol.md, made from fixed seeds.

`python tests/identity/page_vectors.py` writes them into the pages; the test compares.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from cast import NOW, Owner, certificate, key, receipt, take, vouched

from holdfast.identity.log import drafts
from holdfast.identity.records.encodings import digest_of, key_digest
from holdfast.identity.records.records import RotationReason
from holdfast.identity.records.signed import Family, message, sealed
from holdfast.identity.statements.claim import ClaimBasis, LeaseClaim, LeaseYield
from holdfast.identity.statements.relay_answer import digest_of_request, signed_answer
from holdfast.identity.statements.statements import Head, JournalMark, Profile, Relay, sign_head

FORMATS = Path(__file__).parents[2] / "docs" / "formats"
PAGE = FORMATS / "identity-log.md"
RELAY_PAGE = FORMATS / "relay-protocol.md"
NONCE = "AAAAAAAAAAAAAAAAAAAAAAAA"
LAST = re.compile(r"^```json\n(.*?)^```$", re.M | re.S)


def made() -> dict[str, Any]:
    owner = Owner()
    inception = owner.inception()
    log = take(None, inception)
    rotation = owner.rotation(log, 1, why=RotationReason.STOLEN)
    first = receipt(log, rotation, "w1")
    log = vouched(take(log, rotation), rotation, "w1", "w2")
    shown = certificate(log, owner.op(1))
    recovery = owner.recovery(log)
    locked = take(log, recovery)
    after = owner.rotation(locked, 2, by=owner.paper_next(1), why=RotationReason.RECOVERED)
    back = take(locked, after)
    retirement = drafts.retirement(id=log.id, g=2, rp=recovery.digest, by=(owner.paper(2),), heir=None)
    instance = key("instance")
    claim = LeaseClaim(
        id=log.id,
        e=1,
        inst=instance.public,
        crt=shown.digest,
        after_e=0,
        after_how=ClaimBasis.EXPIRED,
        state_root=digest_of(b"state"),
        chal="challenge-challenge",
        ctr=1,
        chain=shown.digest,
    )
    given = LeaseYield(
        id=log.id, e=1, to=key("other instance").public, state_root=digest_of(b"state"), handoff=digest_of(b"handoff")
    )
    profile = Profile(
        id=log.id,
        g=0,
        s=1,
        ver=1,
        relays=(Relay(url="https://relay.example", wit=key("w1").public, prio=1, domain="example"),),
        handles=("ada@relay.example",),
        enc=(),
        policy=(),
        exp=NOW + 86_400,
    )
    head = Head(
        id=log.id,
        g=0,
        s=1,
        e=1,
        seq=1,
        at=NOW,
        manifest=digest_of(b"manifest"),
        archive="ada-1-1-20270115T080000Z",
        bytes=5,
        files=1,
        journal=JournalMark(id="0123456789abcdef", sequence=42, incarnation=1),
    )
    lines = {
        "icp": inception,
        "rot": rotation,
        "rct": first,
        "crt": shown,
        "prf": sealed(profile, Family.PROF, (owner.op(1),)),
        "clm": sealed(claim, Family.LEASE, (instance,)),
        "yld": sealed(given, Family.LEASE, (instance,)),
        "bkh": sign_head(head, owner.op(1)),
        "rcv": recovery,
        "rot after rcv": after,
        "rtr": retirement,
    }
    return {
        "seeds": "the SHA-256 of these names in ASCII",
        "keys": {
            name: {"public": key(name).public, "digest": key_digest(key(name).public)}
            for name in ("owner op 0", "owner next 1", "owner paper 1", "owner paper next 1", "w1")
        },
        "id": log.id,
        "signed bytes of icp (hex, first 40)": message(Family.KEL, inception.body)[:40].hex(),
        "lines": [{"of": name, "digest": one.digest, "line": one.line().decode()} for name, one in lines.items()],
        "positions": [list(log.position), list(locked.position), list(back.position)],
        "standings": [log.standing.value, locked.standing.value, back.standing.value],
    }


def made_of_relays() -> dict[str, Any]:
    """A request that finds nothing, one that is answered, and one that is refused before its body is read."""
    relay, record = key("relay"), Owner().inception()
    id_ = take(None, record).id
    refusal = b'{"code":"not-begun","message":"the relay does not know this agent"}'
    busy = b'{"code":"rate","message":"too many requests","wait_s":3}'
    cases = [
        ("GET", f"/v1/log/{id_}", b"", b"", 404, refusal),
        ("POST", f"/v1/log/{id_}", record.line() + b"\n", record.line() + b"\n", 200, b"(a receipt)"),
        ("PUT", f"/v1/agents/{id_}", b"(a profile)", b"", 429, busy),
    ]
    answers: list[dict[str, Any]] = []
    for method, target, body, read, status, content in cases:
        ask = digest_of_request(method, target, NONCE, read)
        raw = signed_answer(ask=ask, status=status, content=content, now=NOW, signer=relay)
        line, _, rest = raw.decode().partition("\n")
        request = {"method": method, "target": target, "body": body.decode(), "read": bool(read) or not body}
        answers.append({**request, "ask": ask, "status": status, "line": line, "content": rest})
    return {"key": relay.public, "nonce": NONCE, "answers": answers}


def shown(page: Path = PAGE) -> dict[str, Any]:
    return json.loads(LAST.findall(page.read_text())[-1])


def write(page: Path, vectors: dict[str, Any]) -> None:
    text = page.read_text()
    found = list(LAST.finditer(text))[-1]
    block = json.dumps(vectors, indent=1)
    page.write_text(f"{text[: found.start(1)]}{block}\n{text[found.end(1) :]}")


if __name__ == "__main__":
    write(PAGE, made())
    write(RELAY_PAGE, made_of_relays())
