"""Issues and comments at a Git host with GitHub's habits: Queryable by a mark in the body.

The host has no idempotency key. Every text that is posted here ends in a mark, an HTML comment that readers do not see:
the effect key and a short digest of the arguments. After a doubt, and in quiet, the lookup reads the host's list of
issues (newest first) or of an issue's comments as far back as the effect can be old: lists are kept up to date within
seconds, which is part of the quiet time. The host's search lags behind by minutes and is asked only where the list is
too long; it can then say found, never absent.

403 and 429 that limit the rate are refusals that say when to come back: nothing was done.
"""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime
from typing import Any

from holdfast.contracts import reading
from holdfast.core import answers, values
from holdfast.core.effect import Idempotent, Queryable, Read
from holdfast.errors import Misuse, Refused
from holdfast.runtime.http.message import Response
from holdfast.runtime.tool.tool import Call, FindAnswer, Found, Unsure

URL = "https://api.github.com"
LIST_LAG_S = 30.0  # until a list shows what was made; measured in seconds, no bound is published
LIMITED_S = 60.0  # a limit without Retry-After: the host asks for a minute at least
BODY_CHARS_MAX = 65_000  # of the host's 65,536; the mark needs the rest
PAGE = 100
PAGES_MAX = 20

_REPOSITORY = re.compile(r"[A-Za-z0-9_.-]{1,100}/[A-Za-z0-9_.-]{1,100}")
_KEPT = ("id", "number", "html_url", "state", "created_at")
Fields = dict[str, Any]  # Any in this file: JSON of the caller and of the host


class Issues:
    """The issues of one repository."""

    def __init__(
        self,
        repository: str,
        *,
        token: str,
        url: str = URL,
        name: str = "issue",
        list_lag_s: float = LIST_LAG_S,
        timeout_s: float = 30.0,
        needs_approval: bool = False,
    ) -> None:
        """Make the tools.

        Args:
            repository: `owner/name`.
            token: the handle of an access token, `secret://NAME`.
            url: of a host of your own.
            name: the tools are called NAME_create, NAME_comment, NAME_close and NAME_get.
            list_lag_s: how long after a request its issue may be missing in the host's lists.
        """
        if not _REPOSITORY.fullmatch(repository):
            raise Misuse(f"{repository!r}: name the repository as owner/name")
        given = {"where": f"{reading.base_url(url)}/repos/{repository}", "token": token}
        secrets = {"token": reading.secret_name(token, what="token")}
        make = reading.Maker(name, given=given, secrets=secrets, http_only=True, timeout_s=timeout_s)
        effect = Queryable(max_delay_s=list_lag_s + 5)
        self.create = make(create, "create", effect, find=find_issue, needs_approval=needs_approval)
        self.comment = make(comment, "comment", effect, find=find_comment, needs_approval=needs_approval)
        self.close = make(close, "close", Idempotent(), needs_approval=needs_approval)
        self.get = make(get, "get", Read())
        self.tools = [self.create, self.comment, self.close, self.get]


async def create(
    call: Call, *, title: str, where: str, token: str, body: str = "", labels: list[str] | None = None
) -> Fields:
    """Open an issue."""
    text = _marked(call, body, _digest(title, body, labels or []))
    fields = {"title": title, "body": text, **({"labels": labels} if labels else {})}
    response = await _write(call, "POST", f"{where}/issues", fields, token)
    return reading.picked(reading.json_object(response), *_KEPT)


async def comment(call: Call, *, issue: int, body: str, where: str, token: str) -> Fields:
    """Comment on an issue."""
    fields = {"body": _marked(call, body, _digest(issue, body))}
    url = f"{where}/issues/{_number(issue)}/comments"
    return reading.picked(reading.json_object(await _write(call, "POST", url, fields, token)), *_KEPT)


async def close(call: Call, *, issue: int, where: str, token: str) -> Fields:
    """Close an issue, if it is open."""
    url = f"{where}/issues/{_number(issue)}"
    response = await _write(call, "PATCH", url, {"state": "closed"}, token)
    return reading.picked(reading.json_object(response), *_KEPT)


async def get(call: Call, *, issue: int, where: str, token: str) -> Fields:
    """An issue as it is now."""
    response = await call.http.get(f"{where}/issues/{_number(issue)}", headers=_headers(token))
    return reading.picked(reading.json_object(response), *_KEPT, "title", "body")


def read_answer(response: Response) -> answers.Meaning | Refused:
    """What an answer of this host proves; a limit of rate as the refusal that says when."""
    status, headers = response.status, response.headers
    if 200 <= status <= 299:
        return answers.MeansDone()
    spent = headers.get("x-ratelimit-remaining") == "0"
    if status == 429 or (status == 403 and (spent or "retry-after" in headers)):
        return reading.limited(
            response, default_s=reading.until_reset_s(response, default_s=LIMITED_S) if spent else LIMITED_S
        )
    if status in answers.REFUSALS or status == 422:
        return answers.MeansRefused()
    return answers.MeansUnknown(reason=f"{status} does not say whether it was done")


# the lookup


async def find_issue(call: Call, *, title: str, where: str, token: str, **args: Any) -> FindAnswer:
    digest = _digest(title, args.get("body") or "", args.get("labels") or [])
    found: dict[int, Fields] = {}
    params = {"state": "all", "sort": "created", "direction": "desc", "per_page": str(PAGE)}
    for page in range(1, PAGES_MAX + 1):
        response = await call.http.get(f"{where}/issues", params={**params, "page": str(page)}, headers=_headers(token))
        issues = reading.json_objects(response.json())
        found |= {one["id"]: one for one in issues if _is_ours(call, one)}
        bound = reading.oldest(response, call.sent_ago_s)
        last = _made_at(issues[-1]) if issues else None
        if len(issues) < PAGE or (bound is not None and last is not None and last < bound):
            return _answer(call, list(found.values()), digest)
    return await _search(call, where, token, digest)


async def find_comment(call: Call, *, issue: int, body: str, where: str, token: str) -> FindAnswer:
    about = f"{where}/issues/{_number(issue)}"
    seen = await call.http.get(about, headers=_headers(token))
    bound = reading.oldest(seen, call.sent_ago_s)
    since = {} if bound is None else {"since": datetime.fromtimestamp(bound, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}
    found: dict[int, Fields] = {}
    for page in range(1, PAGES_MAX + 1):
        params = {**since, "per_page": str(PAGE), "page": str(page)}
        response = await call.http.get(f"{about}/comments", params=params, headers=_headers(token))
        comments = reading.json_objects(response.json())
        found |= {one["id"]: one for one in comments if _is_ours(call, one)}
        if len(comments) < PAGE:
            return _answer(call, list(found.values()), _digest(issue, body))
    return Unsure(
        f"issue {issue} has more than {PAGES_MAX * PAGE} comments since the call: the lookup did not read all"
    )


async def _search(call: Call, where: str, token: str, digest: str) -> FindAnswer:
    """The index lags: what it shows is there, what it does not show may be."""
    root, _, repository = where.partition("/repos/")
    query = f'"{call.effect_key}" in:body repo:{repository}'
    response = await call.http.get(f"{root}/search/issues", params={"q": query}, headers=_headers(token))
    found = [one for one in reading.json_objects(reading.json_object(response).get("items")) if _is_ours(call, one)]
    if not found:
        newest = f"the newest {PAGES_MAX * PAGE} issues"
        return Unsure(f"the lookup found no issue with this effect key in {newest}, nor in the search; it may exist")
    return _answer(call, found, digest)


def _answer(call: Call, found: list[Fields], digest: str) -> FindAnswer:
    if len(found) == 1 and not _body(found[0]).endswith(_mark(call, digest)):
        return Unsure(f"{found[0].get('html_url')} has the effect key of this step, but not its arguments")
    return reading.counted([Found(reading.picked(one, *_KEPT)) for one in found])


# marks


def _marked(call: Call, body: str, digest: str) -> str:
    if len(body) > BODY_CHARS_MAX:
        raise Misuse(f"a body may have at most {BODY_CHARS_MAX:,} characters, not {len(body):,}")
    return f"{body.rstrip()}\n\n{_mark(call, digest)}".lstrip()


def _mark(call: Call, digest: str) -> str:
    return f"<!-- holdfast:{call.effect_key}:{digest} -->"


def _is_ours(call: Call, one: Fields) -> bool:
    """Only at the end, where we put it: a text that quotes the mark is another text."""
    return re.search(rf"<!-- holdfast:{call.effect_key}:[0-9a-f]+ -->\s*\Z", _body(one)) is not None


def _body(one: Fields) -> str:
    return str(one.get("body") or "").rstrip()


def _digest(*parts: object) -> str:
    return hashlib.sha256(values.canonical(list(parts))).hexdigest()[:16]


# sending


async def _write(call: Call, method: str, url: str, fields: Fields, token: str) -> Response:
    response = await call.http.request(method, url, json=fields, headers=_headers(token), check=False)
    reading.conclude(read_answer(response), response, where=f"{method} {url}")
    return response


def _headers(token: str) -> dict[str, str]:
    return {
        "Authorization": f"Bearer {token}",
        "Accept": "application/vnd.github+json",
        "User-Agent": "holdfast",
        "X-GitHub-Api-Version": "2022-11-28",
    }


def _number(issue: int) -> int:
    if isinstance(issue, bool) or not isinstance(issue, int) or issue < 1:  # pyright: ignore[reportUnnecessaryIsInstance] - a model's argument
        raise Misuse(f"{issue!r} is not the number of an issue")
    return issue


def _made_at(one: Fields) -> float | None:
    try:
        return datetime.fromisoformat(str(one.get("created_at"))).timestamp()
    except ValueError:
        return None
