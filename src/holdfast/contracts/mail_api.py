"""Mail through an HTTP API with SendGrid's habits: Queryable where its activity can be searched.

The API knows no idempotency key. Every mail carries the effect key as a custom argument, which the
provider shows in two places: in the search of its activity, behind by minutes, and in the events
that its webhook sends (mail_events.py). So after a doubt the step waits for the longer of the two:

* an event about the key is evidence, and closes the step at once, at whatever time it comes;
* after `index_lag_s` the search is asked: found is adopted, absent is sent again.

Where the search is not part of the account (`lookup=False`) the class is Unrepeatable: a doubt is
parked at once, and an event still closes it.

An accepted request is the effect: what becomes of the mail on its way is told by events.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from holdfast.contracts.reading import answered_at, base_url, conclude, json_object, json_objects, limited, secret_name
from holdfast.core import answers
from holdfast.core.effect import Queryable, Unrepeatable
from holdfast.errors import Misuse, Refused
from holdfast.runtime.http.message import Response
from holdfast.runtime.tool.tool import Absent, Call, FindAnswer, Found, Many, Tool, tool

MARK = "holdfast_key"  # the custom argument by which a mail is known again
_OF_ONE = re.compile(r"\.(?:filter|recv).*\Z", re.DOTALL)

URL = "https://api.sendgrid.com"
INDEX_LAG_S = 900.0  # no bound is published; minutes are seen
LIMITED_S = 60.0
RECIPIENTS_MAX = 1_000  # of one request, by the provider
FOUND_MAX = 1_000

Fields = dict[str, Any]  # Any in this file: JSON of the caller and of the provider


class MailApi:
    """One sender at a provider of mail."""

    def __init__(
        self,
        key: str,
        *,
        sender: str,
        url: str = URL,
        lookup: bool = True,
        index_lag_s: float = INDEX_LAG_S,
        name: str = "mail",
        timeout_s: float = 30.0,
        needs_approval: bool = False,
    ) -> None:
        """Make the tool.

        Args:
            key: the handle of the API key, `secret://NAME`.
            sender: the address that mail is from.
            lookup: whether the account may search its activity.
            index_lag_s: how long after a request its mail may be missing in that search.
            name: the tool is called NAME_send.
        """
        effect = Queryable(max_delay_s=index_lag_s) if lookup else Unrepeatable()
        self.send: Tool[..., Any] = tool(
            effect=effect,
            name=f"{name}_send",
            http_only=True,
            timeout_s=timeout_s,
            secrets={"key": secret_name(key, what="key")},
            needs_approval=needs_approval,
            given={"key": key, "url": base_url(url), "sender": _address(sender)},
        )(send)
        if lookup:
            self.send.find(find)

    @property
    def tools(self) -> list[Tool[..., Any]]:
        return [self.send]


async def send(
    call: Call,
    *,
    to: list[str],
    subject: str,
    text: str,
    key: str,
    url: str,
    sender: str,
    html: str = "",
    reply_to: str = "",
) -> Fields:
    """Send one mail to these addresses, which see each other."""
    if not 1 <= len(to) <= RECIPIENTS_MAX:
        raise Misuse(f"to: 1 to {RECIPIENTS_MAX} addresses, not {len(to)}")
    content = [{"type": "text/plain", "value": text}]
    if html:
        content.append({"type": "text/html", "value": html})
    fields: Fields = {
        "personalizations": [{"to": [{"email": _address(one)} for one in to]}],
        "from": {"email": sender},
        "subject": subject,
        "content": content,
        "custom_args": {MARK: call.effect_key, "holdfast_step": f"{call.task_id}/{call.ordinal}"},
        **({"reply_to": {"email": _address(reply_to)}} if reply_to else {}),
    }
    where = f"{url}/v3/mail/send"
    response = await call.http.post(where, json=fields, headers=_headers(key), check=False)
    proves = read_answer(response)
    if isinstance(proves, Refused):
        raise proves
    conclude(proves, response, where=f"POST {where}")
    return {"message_id": response.headers.get("x-message-id", ""), "status": "accepted"}


def read_answer(response: Response) -> answers.Meaning | Refused:
    """What an answer of this provider proves; a limit of rate as the refusal that says when."""
    status = response.status
    if 200 <= status <= 299:
        return answers.MeansDone()
    if status == 429:
        return limited(response, default_s=_until_reset(response))
    if status in answers.REFUSALS:
        return answers.MeansRefused()
    return answers.MeansUnknown(reason=f"{status} does not say whether it was accepted")


async def find(call: Call, *, key: str, url: str, **args: Any) -> FindAnswer:
    """Search the activity: one message per recipient, all with our mark."""
    query = f"unique_args['{MARK}']=\"{call.effect_key}\""
    response = await call.http.get(
        f"{url}/v3/messages", params={"query": query, "limit": str(FOUND_MAX)}, headers=_headers(key)
    )
    messages = json_objects(json_object(response).get("messages"))
    if not messages:
        return Absent()
    requests = Counter(message_id(str(one.get("msg_id", ""))) for one in messages)
    results = [{"message_id": name, "status": "accepted"} for name in requests]
    return Found(results[0]) if len(results) == 1 else Many(results)


def _headers(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}", "User-Agent": "holdfast"}


def _until_reset(response: Response) -> float:
    now, reset = answered_at(response), response.headers.get("x-ratelimit-reset", "")
    if now is None or not reset.isdecimal():
        return LIMITED_S
    return min(max(float(reset) - now, 1.0), answers.RETRY_AFTER_MAX_S)


def _address(text: str) -> str:
    """A bare address. Raises Misuse: what is left to the provider's parser may go elsewhere."""
    name, at, host = text.partition("@")
    if not name or not at or not host or any(char <= " " or char in '<>,;"' for char in text):
        raise Misuse(f"{text!r} is no bare address such as ada@example.org")
    return text


def message_id(text: str) -> str:
    """The request's id in the id of one message: `ID.filter...` or `ID.recvd-...`, then a server
    and a recipient."""
    return _OF_ONE.sub("", text)
