"""`holdfast identity`: who the agent is, and who speaks for it. Each verb runs in its own file."""

from __future__ import annotations

import argparse

from holdfast.cli.command import Commands, add_json_option, add_verbs, new_command
from holdfast.cli.identity.signer import add_verb as add_signer
from holdfast.cli.input.input_sheet import add_words_options
from holdfast.cli.input.input_slots import add_slot_options


def add_parser(commands: Commands) -> None:
    parser = new_command(
        commands,
        "identity",
        run=None,
        purpose="Who the agent is. The id never changes; the keys that speak for it do, and the "
        "key log says which: rotated by a key in a second place, taken back by the words on paper.",
        examples=(
            "holdfast identity show",
            "holdfast identity rotate",
            "holdfast identity evict --paper",
            "holdfast identity recover --card card.txt",
        ),
    )
    verbs = add_verbs(parser)
    for add in (
        _add_show,
        _add_rotate,
        _add_evict,
        _add_recover,
        _add_retire,
        _add_answer,
        _add_check_answer,
        add_signer,
    ):
        add(verbs)


def add_home_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--home", metavar="DIR", help="the agent's folder (default: $HOLDFAST_HOME, else this one)")


def _add_yes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--yes", action="store_true", help="do not ask for the typed word")


def _add_show(verbs: Commands) -> None:
    parser = new_command(
        verbs,
        "show",
        run=_show,
        summary="id, standing, head of the log, witnesses, paper",
        purpose="Show the identity: id, standing (active, contested, locked, retired), the newest "
        "record, who vouches for it, and what paper there is. With --fetch the witnesses are asked "
        "first, and the agent's own copy of the log is written anew.",
        examples=("holdfast identity show", "holdfast identity show --fetch --json"),
    )
    add_home_option(parser)
    parser.add_argument("--fetch", action="store_true", help="ask the witnesses, and mend the own copy of the log")
    add_json_option(parser)


def _add_rotate(verbs: Commands) -> None:
    parser = new_command(
        verbs,
        "rotate",
        run=_rotate,
        summary="new keys, by the key in the second place",
        purpose="Make new operational and next keys, store them in the vault and the second place, "
        "try them out, and only then publish the rotation. The second place is opened by its own "
        "passphrase or file. A run that was cut short is finished by the same command.",
        examples=(
            "holdfast identity rotate",
            "holdfast identity rotate --why stolen --yes",
            "holdfast identity rotate --witness /mnt/a/w --witness /mnt/b/w --witness /mnt/c/w",
        ),
    )
    add_home_option(parser)
    parser.add_argument(
        "--why",
        choices=("planned", "stolen"),
        default="planned",
        help="planned: certificates count for ten minutes more; stolen: they end at once",
    )
    parser.add_argument(
        "--witness",
        metavar="DIR",
        action="append",
        default=[],
        help="name these witnesses instead of those before; all of the new set",
    )
    add_slot_options(parser, new=False)
    _add_yes(parser)
    add_json_option(parser)


def _add_evict(verbs: Commands) -> None:
    parser = new_command(
        verbs,
        "evict",
        run=_evict,
        summary="somebody has the keys: throw them out",
        purpose=(
            "Evict whoever holds the agent's keys.\n\n"
            "Without --paper: the operational key was stolen, the next key was not; a rotation\n"
            "ends every certificate at once. With --paper: both may be stolen, or somebody has\n"
            "rotated already; a recovery by the words on paper beats everything that they did,\n"
            "and locks the identity; then fresh keys take over. --lock-only stops after the lock:\n"
            "nobody can act until the words are used again."
        ),
        examples=(
            "holdfast identity evict",
            "holdfast identity evict --paper",
            "holdfast identity evict --paper --lock-only --yes --words-fd 0 < /dev/shm/words",
        ),
    )
    add_home_option(parser)
    parser.add_argument("--paper", action="store_true", help="by the words on paper")
    parser.add_argument("--lock-only", action="store_true", help="with --paper: lock, and install no keys")
    parser.add_argument(
        "--new-witness",
        metavar="DIR",
        action="append",
        default=[],
        help="with --paper: the witnesses of the last recovery record are gone; name these",
    )
    add_words_options(parser)
    add_slot_options(parser, new=False)
    _add_yes(parser)
    add_json_option(parser)


def _add_recover(verbs: Commands) -> None:
    parser = new_command(
        verbs,
        "recover",
        run=_recover,
        summary="everything is lost: from the words on paper",
        purpose=(
            "Bring an agent back from the words of its sheet, or from enough shares, on a machine\n"
            "that has nothing of it. The key log comes from a witness, from a backup's kel.jsonl,\n"
            "or from the code on the public card. The id stays; who had the old keys is out.\n\n"
            "One wrong, missing or swapped word is found. escrow.age, which lies beside every\n"
            "backup, keeps the keys of the journal; without it they are new. The words are asked\n"
            "for without showing them. A run that was cut short is finished by the same command."
        ),
        examples=(
            "holdfast identity recover --home ada --second /media/stick/ada --card card.txt \\\n"
            "    --new-witness ~/witness/ada",
            "holdfast identity recover --home ada --second /srv/second/ada \\\n"
            "    --log backup/kel.jsonl --witness /mnt/witness --escrow backup/escrow.age",
        ),
    )
    add_home_option(parser)
    parser.add_argument("--name", metavar="NAME", default="", help="default: the folder's name")
    parser.add_argument("--vault", metavar="DIR", help="default: ~/.config/holdfast/vault/NAME")
    parser.add_argument("--second", metavar="DIR", help="the place of the next key: another disk, or another user")
    parser.add_argument(
        "--card", metavar="FILE", action="append", default=[], help="the text of the public card, or of its code"
    )
    parser.add_argument(
        "--log",
        metavar="FILE",
        action="append",
        default=[],
        help="a copy of kel.jsonl; receipts.jsonl beside it is read too",
    )
    parser.add_argument(
        "--witness", metavar="DIR", action="append", default=[], help="the folder of a witness that the agent had"
    )
    parser.add_argument(
        "--new-witness",
        metavar="DIR",
        action="append",
        default=[],
        help="the old witnesses are gone: make one here, and let the recovery name it",
    )
    parser.add_argument("--escrow", metavar="FILE", help="escrow.age, as it lies beside a backup")
    parser.add_argument(
        "--again", action="store_true", help="the log shows a recovery to keys that are not here: evict those too"
    )
    add_words_options(parser)
    add_slot_options(parser, new=True)
    _add_yes(parser)
    add_json_option(parser)


def _add_retire(verbs: Commands) -> None:
    parser = new_command(
        verbs,
        "retire",
        run=_retire,
        summary="the end of the identity, by the words on paper",
        purpose="End the identity. Nobody can act for it any more, and nothing brings it back; "
        "peers that ask are shown the heir, if one is named.",
        examples=("holdfast identity retire", "holdfast identity retire --heir hf1... --yes"),
    )
    add_home_option(parser)
    parser.add_argument("--heir", metavar="ID", help="the agent that follows")
    add_words_options(parser)
    _add_yes(parser)
    add_json_option(parser)


def _add_answer(verbs: Commands) -> None:
    parser = new_command(
        verbs,
        "answer",
        run=_answer,
        summary="answer a challenge, signed",
        purpose="Print a signed answer to a challenge that somebody has drawn: it proves that the "
        "keys which the log names were reached after that.",
        examples=("holdfast identity answer --challenge 3q2-7wAAAAAAAAAAAAAAAQ",),
    )
    add_home_option(parser)
    _add_challenge(parser)
    parser.add_argument("--passphrase-fd", metavar="N", help="read the vault's passphrase from this descriptor")


def _add_check_answer(verbs: Commands) -> None:
    parser = new_command(
        verbs,
        "check-answer",
        run=_check_answer,
        summary="verify such an answer against a log",
        purpose="Verify an answer against a copy of the agent's log: the keys that the log names "
        "have signed it, for this challenge, within five minutes. A log from a source that nobody "
        "else confirms may be old; ask two.",
        examples=(
            "holdfast identity check-answer --log kel.jsonl --challenge 3q2-7wAAAAAAAAAAAAAAAQ --answer @answer.json",
        ),
    )
    parser.add_argument(
        "--log", metavar="FILE", required=True, help="a copy of kel.jsonl; receipts.jsonl beside it is read too"
    )
    parser.add_argument("--id", metavar="ID", default="", help="the id that is expected")
    _add_challenge(parser)
    parser.add_argument("--answer", metavar="TEXT", required=True, help="the answer; @FILE, or - for a pipe")
    add_json_option(parser)


def _add_challenge(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--challenge", metavar="TEXT", required=True, help="16 to 86 letters, digits, - and _; drawn by whoever asks"
    )
    parser.add_argument("--asker", metavar="NAME", default="", help="for whom the answer is")


def _show(args: argparse.Namespace) -> int:
    from holdfast.cli.identity.show import run

    return run(args)


def _rotate(args: argparse.Namespace) -> int:
    from holdfast.cli.identity.rotate import run

    return run(args)


def _evict(args: argparse.Namespace) -> int:
    from holdfast.cli.identity.evict import run

    return run(args)


def _recover(args: argparse.Namespace) -> int:
    from holdfast.cli.identity.recover import run

    return run(args)


def _retire(args: argparse.Namespace) -> int:
    from holdfast.cli.identity.retire import run

    return run(args)


def _answer(args: argparse.Namespace) -> int:
    from holdfast.cli.identity.answer import run_answer

    return run_answer(args)


def _check_answer(args: argparse.Namespace) -> int:
    from holdfast.cli.identity.answer import run_check

    return run_check(args)
