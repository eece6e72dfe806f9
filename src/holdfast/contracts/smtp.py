"""Mail by SMTP: at most once, in doubt a person; or Queryable where sent mail can be looked up.

SMTP has no key, and no server can be asked about a message. What can be done is done:

* The doubt is as small as it can be. Until the dot that ends the data has been sent, a server may
  not deliver: everything before it, a killed worker too, provably sent nothing and is tried again.
  Only between the dot and the server's reply is the outcome unknown.
* All recipients or none: one that is refused ends the conversation before the data.
* The Message-ID is made from the effect key, so every attempt of a step is the same message to all
  who look at it: people who must decide, servers and mail programs that drop copies, and a lookup,
  where one is given: a search of a Sent folder, of a log, of an archive that gets a copy of all.

A server that says yes has taken the mail over; a later bounce is not this step's matter.
"""

from __future__ import annotations

import asyncio
import functools
import ssl
from collections.abc import Awaitable, Callable
from email.errors import MessageError
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import formatdate
from typing import Any, Literal, TypeVar

from holdfast.contracts.reading import Maker, counted, secret_name
from holdfast.contracts.smtp_line import Line, LineBroken, Reply, Security, connect, finish, hand_over, hang_up, log_in
from holdfast.core.effect import Queryable, Unrepeatable
from holdfast.errors import Misuse, NotSent, Refused
from holdfast.runtime.tool.tool import Call, FindAnswer, Found, Unsure

TIMEOUT_S = 120.0
RETRY_AFTER_S = 60.0  # a 4xx of a server: busy, greylisted, over its quota
RECIPIENTS_MAX = 100  # what every server must take (RFC 5321, 4.5.3.1.8)
LOOKUP_LAG_S = 300.0
_PORTS = {"tls": 465, "starttls": 587, "none": 25}
_HERE = ("127.0.0.1", "::1", "localhost")

_T = TypeVar("_T")
# How many messages with this Message-ID were sent; None where that cannot be said.
Lookup = Callable[[str], Awaitable[int | None]]
Result = dict[str, Any]  # Any: JSON


class SmtpMail:
    """One sender at one submission server."""

    def __init__(
        self,
        host: str,
        *,
        sender: str,
        user: str = "",
        password: str = "",
        security: Security = "starttls",
        port: int = 0,
        cafile: str = "",
        lookup: Lookup | None = None,
        lookup_lag_s: float = LOOKUP_LAG_S,
        policy: Literal["at_most_once", "at_least_once"] = "at_most_once",
        name: str = "smtp",
        timeout_s: float = TIMEOUT_S,
        needs_approval: bool = False,
    ) -> None:
        """Make the tool.

        Args:
            password: a handle, `secret://NAME`; with `user`.
            security: "tls" from the first byte, "starttls" (must be offered), or "none".
            cafile: certificates to trust instead of the system's, for a server of your own.
            lookup: searches sent mail by its Message-ID; the class is then Queryable.
            lookup_lag_s: how long after the send a mail may be missing there.
            policy: what is done in doubt without a lookup.
            name: the tool is called NAME_send.
        """
        if security not in _PORTS:
            raise Misuse(f"security: 'tls', 'starttls' or 'none', not {security!r}")
        if bool(user) != bool(password):
            raise Misuse("give both user and password, or neither")
        if password and security == "none" and host not in _HERE:
            raise Misuse("Holdfast does not send a password over an unencrypted connection")
        given = {
            "host": host,
            "port": port or _PORTS[security],
            "security": security,
            "user": user,
            "password": password,
            "sender": address(sender),
            "cafile": cafile,
        }
        secrets = {"password": secret_name(password, what="password")} if password else None
        effect = Queryable(max_delay_s=lookup_lag_s) if lookup else Unrepeatable(policy=policy)
        make = Maker(name, given=given, secrets=secrets, marks_sending=True, timeout_s=timeout_s)
        find = None if lookup is None else _finder(lookup)
        self.send = make(send, "send", effect, find=find, needs_approval=needs_approval)
        self.tools = [self.send]


async def send(
    call: Call,
    *,
    to: list[str],
    subject: str,
    text: str,
    host: str,
    port: int,
    security: Security,
    user: str,
    password: str,
    sender: str,
    cafile: str,
    html: str = "",
    bcc: list[str] | None = None,
    reply_to: str = "",
) -> Result:
    """Send one mail; the addresses in `to` see each other, those in `bcc` are seen by nobody."""
    recipients = [address(one) for one in (*to, *(bcc or ()))]
    if not to or len(recipients) > RECIPIENTS_MAX:
        raise Misuse(f"1 to {RECIPIENTS_MAX} recipients, not {len(recipients)}")
    name = message_id(call, sender)
    mail = _mail(name, sender, to, subject, text, html, address(reply_to) if reply_to else "")
    context = None if security == "none" else _context(cafile)
    line: Line | None = None
    begun = whole = False
    try:
        line, offers = await _in_time(call, connect(host, port, security=security, context=context))
        if user:
            await _in_time(call, log_in(line, offers, user, password))
        await _in_time(call, hand_over(line, sender, recipients, mail))
        call.sending()  # from here on the outcome is unknown, until the server has said yes or no
        begun = True
        answer = await finish(line)
        whole = True
        return {"message_id": name, "answer": answer}
    except Reply as reply:
        whole = True
        raise _refusal(reply) from reply
    except ssl.SSLCertVerificationError as error:  # before the first command; it will not pass
        raise Refused({"error": "certificate", "text": str(error)[:500]}) from error
    except (OSError, TimeoutError, UnicodeError) as error:
        if begun:
            raise LineBroken(f"sent, but {host} did not answer: {error}") from error
        raise NotSent(f"{host}:{port}: {error or type(error).__name__}") from error
    finally:
        if line is not None:
            hang_up(line, orderly=whole)


def message_id(call: Call, sender: str) -> str:
    """The same for every attempt of this step."""
    return f"<{call.effect_key}@{sender.rpartition('@')[2]}>"


def address(text: str) -> str:
    """A bare ASCII address. Raises Misuse."""
    name, at, host = text.partition("@")
    plain = text.isascii() and all(char > " " and char not in '<>,;:"\\()[]' for char in text)
    if not (name and at and host and plain) or "@" in host or len(text) > 254:
        raise Misuse(f"{text!r} is not a bare address such as ada@example.org")
    return text


def _mail(name: str, sender: str, to: list[str], subject: str, text: str, html: str, reply_to: str) -> bytes:
    mail = EmailMessage(policy=SMTP.clone(cte_type="7bit"))
    try:
        mail["From"] = sender
        mail["To"] = ", ".join(to)
        mail["Subject"] = subject
        mail["Message-ID"] = name
        mail["Date"] = formatdate(usegmt=True)
        if reply_to:
            mail["Reply-To"] = reply_to
        mail.set_content(text)
        if html:
            mail.add_alternative(html, subtype="html")
        return mail.as_bytes()
    except (ValueError, MessageError, UnicodeError) as error:
        raise Misuse(f"these arguments do not make a valid mail: {error}") from error


async def _in_time(call: Call, step: Awaitable[_T]) -> _T:
    """Until the attempt's own deadline, so that its end before the dot is known to be one."""
    async with asyncio.timeout(max(call.deadline_s - 1.0, 0.1)):
        return await step


def _refusal(reply: Reply) -> Refused:
    """A server that says no has not taken the mail; with a 4xx it may do so later."""
    proof = {"status": reply.code, "text": reply.text}
    return Refused(proof, retry_after_s=RETRY_AFTER_S if 400 <= reply.code <= 499 else None)


@functools.lru_cache(maxsize=8)
def _context(cafile: str) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=cafile or None)


def _finder(lookup: Lookup) -> Callable[..., Awaitable[FindAnswer]]:
    async def find(call: Call, *, sender: str, **_args: Any) -> FindAnswer:
        name = message_id(call, sender)
        count = await lookup(name)
        if count is None:
            return Unsure("the lookup of sent mail cannot tell whether it was sent")
        return counted([Found({"message_id": name, "answer": "found in sent mail"})] * count)

    return find
