"""A Git host with GitHub's habits around issues: lists that lag a little, a search that lags more.

No idempotency: the same request twice makes two issues. Requests without a user agent are refused,
as there. Pages are counted from 1, newest first for issues, oldest first for comments.
"""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from typing import Any

from holdfast.testing.far_ends.web import Answer, Ask, Trouble, WebFarEnd

Object = dict[str, Any]  # Any: JSON as the host writes it


class IssueHost(WebFarEnd):
    def __init__(self, *, token: str, list_lag_s: float = 0.0, search_lag_s: float = 600.0) -> None:
        super().__init__()
        self._token = token
        self._list_lag_s = list_lag_s
        self._search_lag_s = search_lag_s
        self.issues: list[Object] = []
        self.comments: list[Object] = []

    def is_effect(self, ask: Ask) -> bool:
        return ask.method in ("POST", "PATCH")

    def enter(self, ask: Ask) -> Answer | None:
        if "user-agent" not in ask.headers:
            return Answer(403, {"message": "Request forbidden by administrative rules"})
        if ask.headers.get("authorization") != f"Bearer {self._token}":
            return Answer(401, {"message": "Bad credentials"})
        return self._look(ask) if ask.method == "GET" else None

    def work(self, ask: Ask, trouble: Trouble | None) -> Answer:
        fields = ask.json()
        number = _number(ask.path)
        if ask.method == "PATCH":
            found = self._find(number)
            found.update(fields)
            return Answer(200, found)
        if ask.path.endswith("/comments"):
            if not fields.get("body"):
                return Answer(422, {"message": "Validation Failed"})
            made = self._made(self.comments, body=fields["body"], issue=number)
            return Answer(201, made)
        if not fields.get("title"):
            return Answer(422, {"message": "Validation Failed"})
        made = self._made(
            self.issues,
            number=len(self.issues) + 1,
            title=fields["title"],
            state="open",
            body=fields.get("body"),
            labels=fields.get("labels", []),
        )
        return Answer(201, made)

    def _made(self, book: list[Object], **fields: Any) -> Object:
        now = time.time() + self.skew_s
        number = 1_000 + len(self.issues) + len(self.comments)
        made = {
            "id": number,
            **fields,
            "html_url": f"{self.url}/o/r/{number}",
            "at": now,
            "created_at": datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        book.append(made)
        return made

    def _look(self, ask: Ask) -> Answer:
        query = ask.query
        if ask.path == "/search/issues":
            wanted = query["q"].split('"')[1]
            shown = self._shown(self.issues, self._search_lag_s)
            return Answer(200, {"items": [i for i in shown if wanted in str(i["body"])]})
        if ask.path.endswith("/comments"):
            about = [c for c in self.comments if c["issue"] == _number(ask.path)]
            since = query.get("since", "")
            about = [c for c in self._shown(about, self._list_lag_s) if c["created_at"] >= since]
            return _page(about, query)
        if ask.path.endswith("/issues"):
            return _page(list(reversed(self._shown(self.issues, self._list_lag_s))), query)
        return Answer(200, self._find(_number(ask.path)))

    def _shown(self, book: list[Object], lag_s: float) -> list[Object]:
        return [one for one in book if one["at"] + lag_s <= time.time() + self.skew_s]

    def _find(self, number: int) -> Object:
        return next(one for one in self.issues if one["number"] == number)


def _number(path: str) -> int:
    found = re.search(r"/issues/(\d+)", path)
    return int(found[1]) if found else 0


def _page(objects: list[Object], query: dict[str, str]) -> Answer:
    size, page = int(query.get("per_page", "30")), int(query.get("page", "1"))
    return Answer(200, objects[(page - 1) * size : page * size])
