"""`holdfast identity retire`."""

from __future__ import annotations

import argparse
import asyncio

from holdfast.app.agent_home import home_folder, load_home
from holdfast.app.key_record import Done, acting, open_desk
from holdfast.app.paper_acts import find_phrase, retire
from holdfast.cli.confirm import confirm
from holdfast.cli.identity_show import report
from holdfast.cli.paper_text import read_given
from holdfast.errors import BadInput, BadRecord
from holdfast.identity.derive import PaperKeys
from holdfast.identity.ed25519 import Sodium
from holdfast.identity.encodings import AgentId, parse_agent_id
from holdfast.identity.own_log import read_own_log


def run(args: argparse.Namespace) -> int:
    home = load_home(home_folder(args.home))
    heir = _heir(args.heir)
    log = read_own_log(home.folder, Sodium())
    if heir == log.id:
        raise BadInput("--heir: an agent cannot be its own heir")
    confirm(
        "retire", f"{home.name} ({log.id}) ends for good; no words and no key bring it back",
        yes=args.yes,
    )  # fmt: skip
    given = read_given(args)
    phrase, _ = find_phrase(
        [log], words=given.words, shares=given.shares, passphrase=given.passphrase
    )

    async def act(paper: PaperKeys) -> Done:
        return await retire(await open_desk(home, port=Sodium()), paper, heir=heir)

    with phrase, PaperKeys(phrase, given.passphrase) as paper, acting(home.folder):
        done = asyncio.run(act(paper))
    report(home, done, as_json=args.json)
    return 0


def _heir(text: str | None) -> AgentId | None:
    if text is None:
        return None
    try:
        return parse_agent_id(text)
    except BadRecord as error:
        raise BadInput(f"--heir: {error.message}") from error
