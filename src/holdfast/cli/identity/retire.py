"""`holdfast identity retire`."""

from __future__ import annotations

import argparse
import asyncio

from holdfast.cli.identity.show import report
from holdfast.cli.input.confirm import confirm
from holdfast.cli.input.input_sheet import read_given
from holdfast.errors import BadInput, BadRecord
from holdfast.identity.acts.log_act import ActResult, act_lock, open_log_session
from holdfast.identity.acts.paper_acts import find_phrase, retire
from holdfast.identity.files.own_log import read_own_log
from holdfast.identity.paper.derive import PaperKeys
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.records.encodings import AgentId, parse_agent_id
from holdfast.layout.agent_home import home_folder, load_home


def run(args: argparse.Namespace) -> int:
    home = load_home(home_folder(args.home))
    heir = _heir(args.heir)
    log = read_own_log(home.folder, Sodium())
    if heir == log.id:
        raise BadInput("--heir: an agent cannot be its own heir")
    confirm("retire", f"{home.name} ({log.id}) ends for good; no words and no key bring it back", yes=args.yes)
    given = read_given(args)
    phrase, _ = find_phrase([log], words=given.words, shares=given.shares, passphrase=given.passphrase)

    async def act(paper: PaperKeys) -> ActResult:
        return await retire(await open_log_session(home, port=Sodium()), paper, heir=heir)

    with phrase, PaperKeys(phrase, given.passphrase) as paper, act_lock(home.folder):
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
