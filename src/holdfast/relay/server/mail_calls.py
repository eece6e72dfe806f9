"""The calls about mail: submit, log in, take mail, acknowledge. Who may do what, who waits, what it costs in memory.

A recipient logs in with a certificate of its instance and a signature over a nonce of this relay. The session is in
memory alone: after a restart agents log in again. Every call of a session is judged again by what the relay knows then:
a newer key record, a higher incarnation or the end of the certificate ends it, and the refusal carries the proof.

A recipient that waits costs an event; one that does not read costs one answer of at most PAGE_BYTES_MAX, whatever is in
its mailbox, because the next page is read from the disk when it asks for it.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
import shutil
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from http import HTTPStatus

import msgspec

from holdfast.core.decoding import decode_json, msgpack_decoder
from holdfast.errors import BadRecord, HoldfastError
from holdfast.host.sqlite import Db
from holdfast.identity.log.log import replay
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.records.ed25519 import Signatures
from holdfast.identity.records.encodings import AgentId, PublicKey
from holdfast.identity.records.signed import Family, Reason, Refusal, Signed, find_bad_signature, read_line
from holdfast.identity.statements.certificate import (
    Certificate,
    ObserverState,
    Role,
    find_fault_in_certificate,
    parse_certificate,
)
from holdfast.identity.statements.statements import Profile, parse_profile
from holdfast.identity.witness.witness_relay import split_copy
from holdfast.relay.bounded import keep_newest
from holdfast.relay.protocol import calls
from holdfast.relay.protocol.calls import Ack, Login, LoginAnswer, StoredAnswer, StoredItem
from holdfast.relay.protocol.envelope import Envelope, parse_envelope
from holdfast.relay.server import limits, mail, registry
from holdfast.relay.server.asked import Answer, Asked, Said
from holdfast.relay.server.logs import KeyLogs
from holdfast.relay.server.settings import RelaySettings
from holdfast.relay.server.store import Store

SUBMIT_BYTES_MAX = 1024 * 1024
SENDER_LOG_BYTES_MAX = 256 * 1024
ACK_BYTES_MAX = 128 * 1024
LOGIN_BYTES_MAX = 2 * limits.LINE_BODY_BYTES_MAX
NONCE_S = 60.0
NONCES_MAX = 16_384
SESSIONS_MAX = 16_384
SENDERS_MAX, SENDERS_BYTES_MAX = 1_024, 8 * 1024 * 1024  # logs of senders that are not registered here
JUDGED_MAX = 4_096
POSTED_MAX = 32_768  # ids of envelopes: 7 MB
INLINE_MAX = 4  # envelopes that are judged or read at once; more are, in a thread beside the loop
POLLS_MAX = 2  # of one session at a time
ALIVE_S = 60.0  # since its last call: one that takes mail calls again after 25 s at the latest
OLDER_MAX = 8  # instances of an agent that are remembered
SWEEP_S = 60.0
DISK_LOOK_S = 5.0

_FORGED = (calls.MALFORMED, calls.BAD_CERTIFICATE)  # of an envelope: what costs a check of signatures

_parsed_profile = lru_cache(maxsize=4_096)(parse_profile)  # that of the recipient, with every message


@dataclass(slots=True)
class Session:
    id: AgentId
    certificate: Signed[Certificate]
    log: KeyLog
    polls: int = 0
    passed: KeyLog | None = None  # the log with which its certificate passed; checking signatures again is a waste


@dataclass(slots=True)
class _Taker:
    """The instance that gets an agent's mail here: of one incarnation, the one that logged in last. An older one that
    still calls is refused; so it learns of this one, and this one of it. It does not get the mail back while this one
    calls too: they would take turns, and each would handle a part."""

    certificate: Signed[Certificate]
    at: float  # of its last call
    older: tuple[PublicKey, ...] = ()
    other: bytes = b""  # the certificate of an older one that has called since
    other_at: float = 0.0

    @property
    def inst(self) -> PublicKey:
        return self.certificate.record.inst


@dataclass(slots=True)
class _Sender:
    log: KeyLog | None
    e: int  # the highest incarnation seen here
    contact: bool
    repeats: int = 0  # in one request: envelopes that were posted before


@dataclass
class MailDesk:
    """What a relay does with mail."""

    store: Store
    logs: KeyLogs
    key: PublicKey
    port: Signatures
    settings: Callable[[], RelaySettings]
    now: Callable[[], int]
    charge: Callable[[str, int], None]  # the agent or address that pays, and for how many requests more
    _nonces: OrderedDict[str, float] = field(default_factory=OrderedDict[str, float])
    _sessions: OrderedDict[str, Session] = field(default_factory=OrderedDict[str, Session])
    _takers: OrderedDict[AgentId, _Taker] = field(default_factory=OrderedDict[AgentId, _Taker])
    _senders: OrderedDict[AgentId, tuple[KeyLog, int]] = field(
        default_factory=OrderedDict[AgentId, tuple[KeyLog, int]]
    )  # and how many bytes the log has
    _judged: OrderedDict[bytes, KeyLog] = field(default_factory=OrderedDict[bytes, KeyLog])
    _posted: OrderedDict[bytes, None] = field(default_factory=OrderedDict[bytes, None])  # their senders have paid
    _waiting: dict[AgentId, set[asyncio.Event]] = field(default_factory=dict[AgentId, set[asyncio.Event]])
    _disk: tuple[float, bool] = (0.0, False)
    stopping: bool = False

    def __post_init__(self) -> None:
        settings = self.settings()
        self._buckets = limits.Buckets(limits.Rate(4.0 * settings.mails_of_agent_per_s, settings.mails_of_agent_per_s))
        self.quota = mail.Quota(mails=settings.mailbox_mails, bytes=settings.mailbox_mib * 1024 * 1024)

    # sending

    async def submit(self, asked: Asked) -> Answer:
        id_ = asked.id
        try:
            raws = msgpack_decoder(list[bytes]).decode(asked.body)
        except (msgspec.DecodeError, RecursionError):
            raise Said(HTTPStatus.BAD_REQUEST, Reason.MALFORMED, "the body must be a list of envelopes") from None
        if not 0 < len(raws) <= calls.SUBMIT_MAX:
            raise Said(HTTPStatus.BAD_REQUEST, Reason.MALFORMED, f"1 to {calls.SUBMIT_MAX} envelopes may be sent")
        if len(raws) <= INLINE_MAX:
            judged, profile, repeats = self._judge_all(id_, raws)
        else:
            judged, profile, repeats = await asyncio.to_thread(self._judge_all, id_, raws)
        bad = sum(isinstance(one, StoredItem) and one.code in _FORGED for one in judged)
        if bad or repeats:
            self.charge(self.payer_of(asked), bad * limits.FORGED_COST + repeats)
        offered = [one for one in judged if isinstance(one, mail.Offered)]
        stored = iter(await self._put(id_, offered) if offered else ())
        items = tuple(one if isinstance(one, StoredItem) else next(stored) for one in judged)
        moved = any(one.code == calls.MOVED for one in items)
        answer = StoredAnswer(
            to=id_,
            items=items,
            rank=None if profile is None else profile.record.rank,
            profile=profile.line().decode() if moved and profile is not None else "",
        )
        return HTTPStatus.OK, msgspec.json.encode(answer)

    async def _put(self, id: AgentId, offered: Sequence[mail.Offered]) -> list[StoredItem]:
        now, quota = self.now(), self.quota
        found = await self.store.written(
            lambda db: mail.put_mail(db, id, offered, now=now, quota=quota), only_mail=True
        )
        self.wake(id)
        return found

    def _judge_all(
        self, id: AgentId, raws: Sequence[bytes]
    ) -> tuple[list[mail.Offered | StoredItem], Signed[Profile] | None, int]:
        """Each envelope, or why it is not taken; and how many are repeats."""
        log = self.logs.find(id)
        line = self.store.known(("profile", id), lambda db: registry.find_line(db, id, "profile"))
        profile = None if line is None else _parsed_profile(line)
        why: tuple[str, str] | None = None
        if log is None:
            why = calls.UNKNOWN_RECIPIENT, "the relay does not know the recipient"
        elif profile is not None and self.key not in {one.wit for one in profile.record.relays}:
            why = calls.MOVED, "the recipient has left this relay"
        elif no_room := self.no_room:
            why = calls.STORAGE_FULL, no_room
        closed = profile is not None and ("mail", "contacts") in profile.record.policy
        known: dict[AgentId, _Sender] = {}
        judged = [self._judge(id, raw, why, known, closed=closed) for raw in raws]
        return judged, profile, sum(one.repeats for one in known.values())

    def _judge(
        self, id: AgentId, raw: bytes, why: tuple[str, str] | None, known: dict[AgentId, _Sender], *, closed: bool
    ) -> mail.Offered | StoredItem:
        try:
            envelope = parse_envelope(raw)
        except BadRecord as error:
            return StoredItem(id="", code=calls.MALFORMED, message=error.message)
        hex_id = envelope.id.hex()
        if why is not None:
            return StoredItem(id=hex_id, code=why[0], message=why[1], wait_s=60 if why[0] == calls.STORAGE_FULL else 0)
        if envelope.to != id:
            return StoredItem(id=hex_id, code=calls.MALFORMED, message="the envelope is for another agent")
        sender = known.get(envelope.sender) or known.setdefault(envelope.sender, self._look_up(envelope.sender, to=id))
        now, again = time.monotonic(), envelope.id in self._posted  # anyone who has a copy can post it: the poster pays
        wait_s = 0.0 if again else self._buckets.look(envelope.sender, now)  # taken after signatures are checked
        fault = None if wait_s else self._find_fault_in_sender(envelope, sender)
        if fault is not None:
            return StoredItem(id=hex_id, code=fault[0], message=fault[1])
        if wait_s or (not again and (wait_s := self._buckets.take(envelope.sender, now))):
            return StoredItem(id=hex_id, code=calls.RATE, message="too much mail of this agent", wait_s=int(wait_s) + 1)
        sender.repeats += again
        keep_newest(self._posted, envelope.id, None, most=POSTED_MAX)
        if closed and not sender.contact:
            return StoredItem(id=hex_id, code=calls.NOT_A_CONTACT, message="the recipient takes mail of contacts only")
        return mail.Offered(envelope, strange=not sender.contact)

    def _look_up(self, id: AgentId, *, to: AgentId) -> _Sender:
        registered = self.logs.find(id)
        e, contact = self.store.known(
            ("sender", id, to), lambda db: (mail.find_incarnation(db, id)[0], mail.is_contact(db, to, id))
        )
        introduced, _ = self._senders.get(id, (None, 0))
        logs = [one for one in (registered, introduced) if one is not None]
        return _Sender(max(logs, key=lambda one: one.position, default=None), e, contact)

    def _find_fault_in_sender(self, envelope: Envelope, sender: _Sender) -> tuple[str, str] | None:
        crt, log, e = envelope.certificate, sender.log, sender.e
        if log is None:
            return calls.UNKNOWN_SENDER, "the relay does not know the sender's key log"
        now = self.now()
        if self._judged.get(envelope.outer.crt) is not log or not crt.record.iat - 60 <= now < crt.record.exp:
            moment = ObserverState(now=now, head_seen_at=0, incarnation=e)
            fault = find_fault_in_certificate(crt, log, moment, port=self.port)
            if fault is not None:
                return calls.BAD_CERTIFICATE, fault.message
            keep_newest(self._judged, envelope.outer.crt, log, most=JUDGED_MAX)
        if crt.record.e < e:
            return calls.BAD_CERTIFICATE, f"its incarnation is {crt.record.e}, but {e} was already seen"
        if crt.record.role is Role.SHADOW:
            return calls.BAD_CERTIFICATE, "a shadow sends no mail"
        if not envelope.is_signed(self.port):
            return calls.MALFORMED, "the instance key of the certificate did not sign the envelope"
        return None

    async def introduce(self, asked: Asked) -> Answer:
        """The log of a sender that is not registered here; kept in memory, and asked for again when it is forgotten."""
        id_ = asked.id
        copy = split_copy(asked.body)
        try:
            log = await asyncio.to_thread(
                lambda: replay(enumerate(copy.records, 1), enumerate(copy.receipts, 1), port=self.port)
            )
        except BadRecord as error:
            raise Said(HTTPStatus.BAD_REQUEST, Reason.MALFORMED, error.message) from None
        if log is None or log.id != id_:
            raise Said(HTTPStatus.BAD_REQUEST, Reason.MALFORMED, f"the body is not the key log of {id_}")
        self._keep_sender(log, len(asked.body))
        return HTTPStatus.OK, b"{}"

    def _keep_sender(self, log: KeyLog, size: int) -> None:
        """Anyone may bring one: so few bytes are kept, and nothing else keeps a log that has left."""
        gone = [self._senders.pop(log.id)] if log.id in self._senders else []
        self._senders[log.id] = (log, size)
        while len(self._senders) > SENDERS_MAX or sum(one for _, one in self._senders.values()) > SENDERS_BYTES_MAX:
            gone.append(self._senders.popitem(last=False)[1])
        for crt, judged in list(self._judged.items()) if gone else ():
            if any(judged is one for one, _ in gone):
                self._judged.pop(crt, None)

    @property
    def no_room(self) -> str:
        """Why it takes no new mail; empty where it does."""
        if not self._is_disk_full():
            return ""
        return f"the relay takes no new mail: less than {self.settings().free_mib_min} MiB are free on its disk"

    def _is_disk_full(self) -> bool:
        at, full = self._disk
        if time.monotonic() - at > DISK_LOOK_S or not at:
            full = shutil.disk_usage(self.store.path.parent).free < self.settings().free_mib_min * 1024 * 1024
            self._disk = (time.monotonic(), full)
        return full

    # logging in

    async def nonce(self, asked: Asked) -> Answer:
        nonce = base64.urlsafe_b64encode(secrets.token_bytes(18)).decode()
        keep_newest(self._nonces, nonce, time.monotonic() + NONCE_S, most=NONCES_MAX)
        return HTTPStatus.OK, nonce.encode()

    async def login(self, asked: Asked) -> Answer:
        """The body is a login and a certificate, each a line."""
        id_, lines = asked.id, asked.body.split(b"\n")
        try:
            login = read_line(lines[0], Login, "a login")
            certificate = parse_certificate(lines[1] if len(lines) > 1 else b"")
        except BadRecord as error:
            raise Said(HTTPStatus.BAD_REQUEST, Reason.MALFORMED, error.message) from None
        said, crt = login.record, certificate.record
        until = self._nonces.pop(said.nonce, 0.0)
        if until < time.monotonic() or (said.wit, said.id, crt.id) != (self.key, id_, id_):
            raise Said(HTTPStatus.FORBIDDEN, "bad-login", "the login is for another relay or agent, or came too late")
        if (
            said.crt != certificate.digest
            or len(login.signatures) != 1
            or find_bad_signature(login, Family.LOGIN, (crt.inst,), self.port)
        ):
            raise Said(HTTPStatus.FORBIDDEN, "bad-login", "the login is not signed by the key of its certificate")
        log = await asyncio.to_thread(self.logs.find, id_)
        if log is None:
            raise Said(HTTPStatus.NOT_FOUND, Reason.NOT_BEGUN, "the relay does not know this agent")
        session = Session(id_, certificate, log)
        self._check(session)
        state = await self.store.written(lambda db: mail.enter(db, id_, e=crt.e, crt=certificate.line()))
        if state.e > crt.e:
            raise _fenced(f"incarnation {state.e} was already seen", state.crt or b"")
        self._claim(session)
        asked.know(id_)
        token = secrets.token_urlsafe(32)
        keep_newest(self._sessions, token, session, most=SESSIONS_MAX)
        answer = LoginAnswer(
            to=id_,
            token=token,
            e=state.e,
            first=state.first,
            last=state.last,
            head=state.head.hex(),
            expires_s=max(0, crt.exp - self.now()),
        )
        return HTTPStatus.OK, msgspec.json.encode(answer)

    def _claim(self, session: Session) -> None:
        """A login: from now on this instance gets the mail, if it was not replaced by one that is alive."""
        crt, now, before = session.certificate.record, time.monotonic(), self._takers.get(session.id)
        older: tuple[PublicKey, ...] = ()
        if before is not None and before.certificate.record.e == crt.e and before.inst != crt.inst:
            if crt.inst in before.older and now - before.at < ALIVE_S:
                self._check_taker(session)
            older = tuple(one for one in (*before.older, before.inst) if one != crt.inst)[-OLDER_MAX:]
        elif before is not None and before.inst == crt.inst:
            older = before.older
        keep_newest(self._takers, session.id, _Taker(session.certificate, now, older), most=SESSIONS_MAX)
        self.wake(session.id)  # an older one that waits is answered now

    def _check_taker(self, session: Session, *, called: bool = True) -> None:
        """Whether this instance gets the mail. `called`: it asks now, so it is alive; an answer that was waited for
        says nothing of that."""
        taker, now = self._takers.get(session.id), time.monotonic()
        if taker is None or taker.certificate.record.e < session.certificate.record.e:
            taker = _Taker(session.certificate, now)
            keep_newest(self._takers, session.id, taker, most=SESSIONS_MAX)
        if taker.inst == session.certificate.record.inst:
            taker.at = now if called else taker.at
            return
        if called:
            taker.other, taker.other_at = session.certificate.line(), now
        text = "another instance of this agent, of the same incarnation, logged in later and takes its mail"
        raise Said(HTTPStatus.CONFLICT, calls.SECOND_INSTANCE, text, proof=taker.certificate.line())

    def _other_of(self, id: AgentId) -> str:
        taker = self._takers.get(id)
        return "" if taker is None or time.monotonic() - taker.other_at > ALIVE_S else taker.other.decode()

    def _session(self, asked: Asked, *, called: bool = True) -> Session:
        token = asked.request.headers.get(calls.TOKEN_HEADER, "")
        session = self._sessions.get(token)
        if session is None or session.id != asked.id:
            raise Said(HTTPStatus.UNAUTHORIZED, calls.NO_SESSION, "the relay has no such session; log in again")
        try:
            self._check(session)
            self._check_taker(session, called=called)
        except Said:
            self._sessions.pop(token, None)
            raise
        self._sessions.move_to_end(token)
        asked.know(session.id)
        return session

    def payer_of(self, asked: Asked) -> str:
        """Whose requests this one counts with: those of the agent that has logged in, else those of its address."""
        session = self._sessions.get(asked.request.headers.get(calls.TOKEN_HEADER, ""))
        return asked.sender if session is None else session.id

    def _check(self, session: Session) -> None:
        """Whether its certificate still passes, by what the relay knows now."""
        e, crt = self.store.known(("incarnation", session.id), lambda db: mail.find_incarnation(db, session.id))
        session.log = self.logs.find(session.id) or session.log
        moment, said = ObserverState(now=self.now(), head_seen_at=0, incarnation=e), session.certificate.record
        if session.passed is session.log and said.e >= e and said.iat - 60 <= moment.now < said.exp:
            return
        fault = find_fault_in_certificate(session.certificate, session.log, moment, port=self.port)
        if fault is None and session.certificate.record.role is Role.SHADOW:
            fault = Refusal(Reason.WRONG_CERTIFICATE, "a shadow has no mail")
        if fault is None:
            session.passed = session.log
            return
        if fault.reason is Reason.OLD_INCARNATION:
            raise _fenced(fault.message, crt)
        if fault.reason in (Reason.OLD_KEYS, Reason.LOCKED, Reason.RETIRED, Reason.CONTESTED):
            raise _fenced(fault.message, b"")  # the newer records are at /v1/log/{id}
        raise Said(HTTPStatus.UNAUTHORIZED, calls.NO_SESSION, fault.message)

    # taking mail

    async def take(self, asked: Asked) -> Answer:
        session = self._session(asked)
        query = asked.request.query_params
        after, wait_s = _whole(query.get("after", "0")), min(_whole(query.get("wait", "0")), calls.WAIT_S_MAX)
        if session.polls >= POLLS_MAX:
            raise Said(HTTPStatus.TOO_MANY_REQUESTS, calls.RATE, "this session waits already", 1)
        session.polls += 1
        try:
            page = await self._page(session, after, wait_s)
        finally:
            session.polls -= 1
        self._session(asked, called=False)  # it may have been fenced while it waited
        return HTTPStatus.OK, msgspec.msgpack.encode(msgspec.structs.replace(page, other=self._other_of(session.id)))

    async def _page(self, session: Session, after: int, wait_s: float) -> calls.MailAnswer:
        """Woken by mail, and by a new key record: that may end the session."""
        event, id_ = asyncio.Event(), session.id
        self._waiting.setdefault(id_, set()).add(event)
        until, woken = time.monotonic() + wait_s, False
        try:
            while True:
                event.clear()
                page = self.store.read(lambda db: mail.page_of(db, id_, after=after, most=INLINE_MAX))
                if page.items and page.items[-1].seq < page.last:
                    page = await asyncio.to_thread(self.store.read, lambda db: mail.page_of(db, id_, after=after))
                left = until - time.monotonic()
                if page.items or left <= 0 or self.stopping:
                    return page
                if woken:  # the caller checks what is answered
                    self._check(session)
                    self._check_taker(session, called=False)
                try:
                    async with asyncio.timeout(left):
                        woken = await event.wait()
                except TimeoutError:
                    return page
        finally:
            self._waiting[id_].discard(event)
            if not self._waiting[id_]:
                del self._waiting[id_]

    async def acknowledge(self, asked: Asked) -> Answer:
        session = self._session(asked)
        try:
            ack = decode_json(asked.body, Ack)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise Said(HTTPStatus.BAD_REQUEST, Reason.MALFORMED, str(error)) from None
        now, quota, e = self.now(), self.quota, session.certificate.record.e

        def act(db: Db) -> bytes:
            seen, crt = mail.find_incarnation(db, session.id)
            if e < seen:  # another instance logged in since this request was let in
                raise _fenced(f"incarnation {seen} was already seen", crt)
            return msgspec.json.encode(mail.acknowledge(db, session.id, ack, now=now, quota=quota))

        answer = await self.store.written(act, only_mail=not ack.contacts)
        if ack.rewind is not None:
            self.wake(session.id)
        return HTTPStatus.OK, answer

    # around

    def wake(self, id: AgentId | None = None) -> None:
        """Those who wait for this agent's mail, or all, look again."""
        found = self._waiting.values() if id is None else (self._waiting.get(id, set()),)
        for events in found:
            for event in events:
                event.set()

    def stop(self) -> None:
        self.stopping = True
        self.wake()

    async def sweep(self) -> None:
        """Runs beside the server: mail that has expired leaves its tombstone."""
        while True:
            try:
                swept = await self.store.written(lambda db: mail.sweep(db, now=self.now()), only_mail=True)
                more = swept >= mail.SWEEP_MAX
            except HoldfastError:
                more = False  # the store says why; /healthz shows it
            if not more:
                await asyncio.sleep(SWEEP_S)


def _fenced(message: str, proof: bytes) -> Said:
    return Said(HTTPStatus.CONFLICT, calls.FENCED, message, proof=proof)


def _whole(text: str) -> int:
    if not text.isdecimal() or len(text) > 15:
        raise Said(HTTPStatus.BAD_REQUEST, Reason.MALFORMED, "after and wait are whole numbers")
    return int(text)
