"""An agent with an identity, and snapshots of it, for trying what backups promise.

`Owner` has keys from fixed seeds and a log of its own; `snapshot` stages a folder and signs its
head; `archive` writes the tar that Borg would give back. Nothing here is secret.
"""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.backup.archive.reader import HEAD_NAME
from holdfast.backup.snapshot.staging import Staged, Subject, stage
from holdfast.core.journal_address import file_at
from holdfast.errors import InvariantViolated
from holdfast.host.private_files import ensure_private_folder, write_atomically
from holdfast.identity.log import drafts
from holdfast.identity.log.log import accept
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.records.encodings import AgentId
from holdfast.identity.records.records import Keys
from holdfast.identity.records.secret_bytes import KeyPair, SecretBytes
from holdfast.identity.records.signed import Signed
from holdfast.identity.statements.statements import Head, JournalMark, sign_head

SODIUM = Sodium()
AT = 1_800_000_000
BLOCK = 512


@dataclass
class Owner:
    """One agent's keys and log. It has what backups ask of a Speaker."""

    name: str = "ada"
    log_: KeyLog = field(init=False)

    def __post_init__(self) -> None:
        signed = drafts.inception(
            op=(self.op,),
            nxt=drafts.committed((_key(f"{self.name} next").public,)),
            rec=drafts.committed((_key(f"{self.name} paper").public,)),
            wit=Keys((_key("witness").public,), 1),
            nonce="AAAAAAAAAAAAAAAAAAAAAA",
        )
        log = accept(None, signed, port=SODIUM)
        if not isinstance(log, KeyLog):
            raise InvariantViolated("lab", log.message)
        self.log_ = log

    @property
    def op(self) -> KeyPair:
        return _key(f"{self.name} op")

    @property
    def id(self) -> AgentId:
        return self.log_.id

    def log(self) -> KeyLog:
        return self.log_

    def seal_head(self, head: Head) -> Signed[Head]:
        return sign_head(head, self.op)


def _key(name: str) -> KeyPair:
    return KeyPair(SecretBytes(hashlib.sha256(f"backup lab: {name}".encode()).digest()))


def head_of(owner: Owner, staged: Staged, *, before: Signed[Head] | None = None) -> Signed[Head]:
    about = staged.about
    mark = about.journal
    return owner.seal_head(
        Head(
            id=owner.id,
            g=0,
            s=0,
            e=about.e,
            seq=about.seq,
            at=about.at,
            manifest=staged.manifest,
            archive=f"{owner.name}-{about.e}-{about.seq}-{about.at}",
            bytes=staged.bytes,
            files=staged.files,
            journal=None
            if mark is None
            else JournalMark(id=mark.id, sequence=mark.sequence, incarnation=mark.incarnation),
            prev=None if before is None else before.digest,
        )
    )


def snapshot(owner: Owner, folder: Path, staging: Path, *, before: Signed[Head] | None = None) -> Signed[Head]:
    """Stage the folder into a new staging folder, sign the head, put it there."""
    ensure_private_folder(staging)
    journal = folder / "journal.db"
    subject = Subject(
        folder=folder,
        journal=file_at(journal) if journal.exists() else None,
        id=owner.id,
        name=owner.name,
        incarnation=None,
        seq=1 if before is None else before.record.seq + 1,
        at=AT if before is None else before.record.at + 3600,
        holdfast="lab",
    )
    head = head_of(owner, stage(subject, staging), before=before)
    write_atomically(staging / HEAD_NAME, head.line() + b"\n")
    return head


def member(
    name: str | bytes,
    content: bytes = b"",
    *,
    kind: bytes = b"0",
    mode: int = 0o600,
    size: int | None = None,
    link: bytes = b"",
    **fields: bytes,
) -> bytes:
    """One member of a tar in the GNU form; `fields` are written over its header as they are."""
    raw = name.encode() if isinstance(name, str) else name
    stated = len(content) if size is None else size
    header = bytearray(BLOCK)
    before = b""
    if len(raw) > 100:
        before = member(b"././@LongLink", raw + b"\0", kind=b"L", mode=0)
    header[0 : len(raw[:100])] = raw[:100]
    header[100:108] = b"%07o\0" % mode
    header[108:124] = b"0000000\0" * 2
    header[124:136] = b"%011o\0" % stated if stated < 8**11 else b"\x80" + stated.to_bytes(11, "big")
    header[136:148] = b"%011o\0" % AT
    header[156:157] = kind
    header[157 : 157 + len(link)] = link
    header[257:265] = b"ustar  \0"
    for place, value in fields.items():
        at = int(place.removeprefix("at_"))
        header[at : at + len(value)] = value
    if "at_148" not in fields:
        header[148:156] = b" " * 8
        header[148:156] = b"%06o\0 " % sum(header)
    return before + bytes(header) + content + bytes(-len(content) % BLOCK)


def tree_members(staging: Path) -> list[bytes]:
    """What Borg gives for a staging folder: the root, then everything below it."""
    members = [member("./", kind=b"5", mode=0o700)]
    for path in sorted(staging.rglob("*")):
        name, mode = path.relative_to(staging).as_posix(), path.stat().st_mode & 0o7777
        if path.is_dir():
            members.append(member(f"{name}/", kind=b"5", mode=mode))
        else:
            members.append(member(name, path.read_bytes(), mode=mode))
    return members


def archive(members: list[bytes], *, end: bytes = bytes(2 * BLOCK)) -> io.BytesIO:
    return io.BytesIO(b"".join(members) + end)
