"""`holdfast identity answer` and `check-answer`."""

from __future__ import annotations

import argparse

from holdfast.cli.input.agent_places import path_of
from holdfast.cli.input.input_log import read_log_file
from holdfast.cli.input.input_slots import open_existing
from holdfast.cli.input.input_values import read_text
from holdfast.cli.screen.screen import print_fields, print_json, talk
from holdfast.core.clock import SystemClock
from holdfast.errors import BadInput, BadRecord, VaultMissing
from holdfast.identity.files.own_log import read_own_log
from holdfast.identity.log.log import replay
from holdfast.identity.log.log_state import is_final
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.speaker.signer_client import SignerClient, SignerSpeaker
from holdfast.identity.speaker.vault_speaker import VaultSpeaker
from holdfast.identity.statements.answer import find_fault_in_answer, parse_answer
from holdfast.layout.agent_home import home_folder, load_home


def run_answer(args: argparse.Namespace) -> int:
    home = load_home(home_folder(args.home))
    if home.signer is not None:
        signer = SignerSpeaker(SignerClient(home.signer))
        print(signer.answer(args.challenge, asker=args.asker).line().decode())
        return 0
    if home.vault is None:
        raise VaultMissing(f"{home.settings_file} names no vault")
    with open_existing(home.vault, "--passphrase-fd", args.passphrase_fd, what="the vault") as vault:
        speaker = VaultSpeaker(vault, read_log=lambda: read_own_log(home.folder, Sodium()), clock=SystemClock())
        print(speaker.answer(args.challenge, asker=args.asker).line().decode())
    return 0


def run_check(args: argparse.Namespace) -> int:
    copy = read_log_file(path_of(args.log))
    try:
        log = replay(enumerate(copy.records, 1), enumerate(copy.receipts, 1), port=Sodium())
        answer = parse_answer(read_text(args.answer, what="--answer").encode())
    except BadRecord as error:
        raise BadInput(error.message) from error
    if log is None:
        raise BadInput(f"{args.log} contains no log")
    if args.id and args.id.lower() != log.id:
        raise BadInput(f"this is the log of another agent: {log.id}")
    now = SystemClock().wall_ms() // 1000
    fault = find_fault_in_answer(answer, log, challenge=args.challenge, now=now, port=Sodium(), asker=args.asker)
    if fault is not None:
        raise BadInput(f"not a valid answer of {log.id}: {fault.message}", hint="it proves nothing")
    final = is_final(log, log.position)
    if not final:
        talk(
            "the newest record of this log has no witness receipts: anyone with the previous keys "
            "could have made it. Ask a witness, or put receipts.jsonl next to the log"
        )
    shown = {"id": log.id, "g": log.position.g, "s": log.position.s, "at": answer.record.at, "final": final}
    head = f"({log.position.g}, {log.position.s}) {'final' if final else 'not final'}"
    print_json(shown) if args.json else print_fields([("id", log.id), ("answers", "yes"), ("head", head)])
    return 0
