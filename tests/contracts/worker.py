"""A worker that a test kills: serves one contract's tool in a task of three steps.

Words: journal, contract, options as JSON. Says `result ...` when the task is done. The same words
again find the same task, by its request id.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

import holdfast
from holdfast.testing.lab import fast


def made(contract: str, options: dict[str, Any]) -> tuple[holdfast.Tool[..., Any], dict[str, Any]]:
    """The tool, and the arguments of one call."""
    args = options.pop("args")
    if contract == "payments":
        from holdfast.contracts import Payments

        return Payments("secret://billing", **options).charge, args
    if contract == "objects":
        from holdfast.contracts import Objects

        handles = {"access_key": "secret://s3-id", "secret_key": "secret://s3-key"}
        return Objects("reports", **handles, **options).create, args
    if contract == "issues":
        from holdfast.contracts import Issues

        return Issues("o/r", token="secret://git", **options).create, args
    if contract == "mail_api":
        from holdfast.contracts import MailApi

        return MailApi("secret://mail", **options).send, args
    if contract == "smtp":
        from holdfast.contracts import SmtpMail

        words = {"sender": "bot@example.org", "security": "none"}
        return SmtpMail("127.0.0.1", **words, **options).send, args
    if contract == "sql":
        return taking(options["path"], options["stop"]), args
    raise SystemExit(f"no contract {contract}")


def taking(path: str, stop: str) -> holdfast.Tool[..., Any]:
    from sqlite3 import connect  # noqa: TID251 - a user's own database, by the standard library

    from holdfast.contracts import Sql
    from holdfast.testing.far_ends import drivers

    factory: dict[str, Any] = {"factory": drivers.StopsAfterCommit} if stop == "after" else {}
    sql = Sql(lambda: connect(path, timeout=10, **factory))

    @sql.tool
    def take(tx: Any, sku: str) -> dict[str, Any]:
        tx.execute("UPDATE stock SET free = free - 1 WHERE sku = ?", (sku,))
        tx.emit("taken", {"sku": sku})
        if stop == "before":
            print("inside", flush=True)
            time.sleep(60)
        return {"left": tx.execute("SELECT free FROM stock").fetchone()[0]}

    return take


@holdfast.tool(effect=holdfast.Read())
async def look() -> str:
    return "seen"


async def main() -> None:
    journal, contract, options = sys.argv[1:]
    tool, args = made(contract, json.loads(options))

    @holdfast.task
    async def work(run: holdfast.Run) -> list[Any]:
        return [await run.call(look), await run.call(tool, **args), await run.call(look)]

    async with holdfast.open(journal, tasks=[work], settings=fast()) as hf:
        handle = await hf.submit(work, request_id="one")
        try:
            print("result", json.dumps(await handle.result(30)), flush=True)
        except holdfast.TaskParked as parked:
            print("parked", parked.message, flush=True)


asyncio.run(main())
