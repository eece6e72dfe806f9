"""`holdfast identity`: who the agent is, which keys sign for it, and the signer that keeps a key in its own process."""

from __future__ import annotations

import argparse

from holdfast.cli.command import (
    Commands,
    acting_home,
    add_flag,
    add_list,
    add_options,
    add_witnesses,
    imported,
    new_noun,
    new_verb,
)
from holdfast.cli.input.input_sheet import add_words_options
from holdfast.cli.input.input_slots import add_slot_options
from holdfast.errors import BadInput, BadSettings


def add_parser(commands: Commands) -> None:
    verbs = new_noun(commands, "identity").help("""
        Who the agent is. The id never changes; the keys that sign for it do, and the key log says which are valid.
        A key in a second place rotates them; the recovery words take the identity back after a theft.
        examples:
          holdfast identity show
          holdfast identity rotate
          holdfast identity evict --paper
          holdfast identity recover --card card.txt
        """)
    parser = new_verb(verbs, "show", imported("identity.show")).help("""
        show id, standing, newest log record, witnesses, paper

        Show the identity: id, standing (active, contested, locked, retired), the newest record, which witnesses
        confirm it, and which recovery sheets exist. With --fetch, ask the witnesses first and write the agent's own
        copy of the log again.
        examples:
          holdfast identity show
          holdfast identity show --fetch --json
        """)
    add_options(parser, "--home")
    add_flag(parser, "--fetch", "ask the witnesses, and repair the agent's copy of the log")
    add_options(parser, "--json")
    parser = new_verb(verbs, "rotate", imported("identity.change", "run_rotate")).help("""
        make new keys, with the key in the second place

        Make a new operational key and a new next key, store them in the vault and the second place, test them, and
        only then publish the rotation. The second place has its own passphrase or file. If a run is interrupted,
        run the same command again to finish it.
        examples:
          holdfast identity rotate
          holdfast identity rotate --why stolen --yes
          holdfast identity rotate --witness /mnt/a/w --witness /mnt/b/w --witness /mnt/c/w
        """)
    add_options(parser, "--home")
    parser.add_argument(
        "--why",
        choices=("planned", "stolen"),
        default="planned",
        help="planned (default): old certificates stay valid for ten more minutes; stolen: they become invalid at once",
    )
    add_witnesses(parser, "--witness", "use these witnesses instead of the old ones; name the whole new set")
    add_options(parser, "--invite")
    add_slot_options(parser, new=False)
    add_options(parser, "--yes", "--json")
    parser = new_verb(verbs, "evict", imported("identity.change", "run_evict")).help("""
        the keys were stolen: evict the thief

        Evict a thief who holds the agent's keys.

        Without --paper: the operational key was stolen, the next key was not. A rotation ends every certificate at
        once. With --paper: both may be stolen, or the thief has already rotated. A recovery with the recovery words
        overrides everything that the thief did and locks the identity; then new keys take over. --lock-only stops
        after the lock: no keys can act until you use the words again.
        examples:
          holdfast identity evict
          holdfast identity evict --paper
          holdfast identity evict --paper --lock-only --yes --words-fd 0 < /dev/shm/words
        """)
    add_options(parser, "--home")
    add_flag(parser, "--paper", "with the recovery words")
    add_flag(parser, "--lock-only", "with --paper: only lock; install no keys")
    add_witnesses(parser, "--new-witness", "with --paper: the witnesses of the last recovery are lost; use these")
    add_options(parser, "--invite")
    add_words_options(parser)
    add_slot_options(parser, new=False)
    add_options(parser, "--yes", "--json")
    parser = new_verb(verbs, "recover", imported("identity.change", "run_recover")).help("""
        everything is lost: recover from the recovery words

        Recover an agent's identity from the words of its sheet, or from enough shares, on a new machine. The key
        log comes from a witness, from a backup's kel.jsonl, or from the code on the public card. A relay that keeps
        the log finds it by the words alone. The id does not change. Holders of the old keys are locked out.

        Holdfast finds one wrong, missing or swapped word. escrow.age, stored next to every backup, holds the keys
        of the journal; without it, Holdfast makes new ones. It asks for the words without showing them. If a run is
        interrupted, run the same command again to finish it.
        examples:
          holdfast identity recover --home ada --second /media/stick/ada --card card.txt \\
            --new-witness ~/witness/ada
          holdfast identity recover --home ada --second /media/stick/ada \\
            --witness https://relay.example#z6Mk...
          holdfast identity recover --home ada --second /srv/second/ada \\
            --log backup/kel.jsonl --witness /mnt/witness --escrow backup/escrow.age
        """)
    add_options(parser, "--home")
    parser.add_argument("--name", metavar="NAME", default="", help="the agent's name (default: the folder's name)")
    add_options(parser, "--vault", "--second")
    add_list(parser, "--card", "FILE", "the public card: its text, or a scan (PDF, PNG, JPEG); repeat it for each page")
    add_list(parser, "--log", "FILE", "a copy of kel.jsonl; Holdfast also reads receipts.jsonl next to it")
    add_witnesses(parser, "--witness", "an existing witness of the agent")
    add_witnesses(parser, "--new-witness", "the old witnesses are lost: use this new one")
    add_options(parser, "--invite", "--id")
    parser.add_argument("--escrow", metavar="FILE", help="the file escrow.age; there is one next to every backup")
    add_flag(
        parser,
        "--again",
        "the agent was already recovered with keys that are not on this machine: recover again, and lock those out",
    )
    add_words_options(parser)
    add_slot_options(parser, new=True)
    add_options(parser, "--yes", "--json")
    parser = new_verb(verbs, "retire", imported("identity.change", "run_retire")).help("""
        end the identity, with the recovery words

        End the identity for good. No keys can act for it, and it cannot be restored. Peers that ask see the heir,
        if you name one.
        examples:
          holdfast identity retire
          holdfast identity retire --heir hf1... --yes
        """)
    add_options(parser, "--home")
    parser.add_argument("--heir", metavar="ID", help="the id of the agent that takes over")
    add_words_options(parser)
    add_options(parser, "--yes", "--json")
    parser = new_verb(verbs, "answer", imported("identity.show", "run_answer")).help("""sign an answer to a challenge

        Print a signed answer to a challenge from a peer. It proves that this agent holds the keys that the log
        names.
        examples:
          holdfast identity answer --challenge 3q2-7wAAAAAAAAAAAAAAAQ
        """)
    add_options(parser, "--home")
    _add_challenge(parser, "the random text that the peer sent", "the peer that the answer is for")
    add_options(parser, "--passphrase-fd")
    parser = new_verb(verbs, "check-answer", imported("identity.show", "run_check")).help("""
        verify an answer against a log

        Verify an answer against a copy of the agent's log: the keys that the log names signed it, for this
        challenge, within five minutes. A log from only one source may be old; ask two.
        examples:
          holdfast identity check-answer --log kel.jsonl --challenge 3q2-7wAAAAAAAAAAAAAAAQ --answer @answer.json
        """)
    parser.add_argument(
        "--log",
        metavar="FILE",
        required=True,
        help="a copy of kel.jsonl; Holdfast also reads receipts.jsonl next to it",
    )
    parser.add_argument("--id", metavar="ID", default="", help="the id that you expect")
    _add_challenge(parser, "the random text that you sent to the agent", "the name that the agent gave with --asker")
    parser.add_argument("--answer", metavar="TEXT", required=True, help="the answer, @FILE, or - for standard input")
    add_options(parser, "--json")
    parser = new_verb(verbs, "add-unlock", run_add_unlock).help("""let a file or a credential open the vault

        Add a way to open the vault without a person, so that workers and backup timers can start at night. The
        passphrase stays valid. Anyone who can read both the unlock file and the vault can act as the agent: keep them
        on different disks.
        examples:
          holdfast identity add-unlock --unlock-file /run/secrets/ada
          holdfast identity add-unlock --unlock-file /mnt/keys/ada --passphrase-fd 3 3< passphrase
        """)
    add_options(parser, "--home", "--passphrase-fd")
    parser.add_argument("--unlock-file", metavar="FILE", help="the file; Holdfast makes it if it is missing")
    parser.add_argument("--credential", metavar="NAME", help="a systemd credential")
    add_options(parser, "--json")
    parser = new_verb(verbs, "signer", run_signer).help("""
        keep the operational key in a separate process, behind a socket

        Open the vault and serve a Unix socket until SIGTERM or Ctrl-C. A client can ask for a certificate, a signed
        answer to a challenge, a profile, a backup head, or the keys that read the journal. The signer never signs
        bytes that a client sends. Run it as a different user from the agent, with its own home and vault; name the
        agent's user with --allow. In the agent's holdfast.toml, set `signer` under [identity] to the socket's path.
        See `holdfast explain keys`.
        examples:
          holdfast identity signer --home /var/lib/holdfast-signer/ada --allow ada
          holdfast identity signer --home ~/agents/ada --socket /run/user/1000/ada.sock
        """)
    parser.add_argument(
        "--home",
        metavar="DIR",
        help="the signer's folder for the agent, with holdfast.toml and "
        "kel.jsonl (default: $HOLDFAST_HOME, else this folder)",
    )
    parser.add_argument(
        "--socket",
        metavar="PATH",
        help="path of the socket (default: `signer` under [identity] in the home's holdfast.toml, "
        "else signer.sock in the home)",
    )
    add_list(
        parser,
        "--allow",
        "USER",
        "a user, by name or number, that the signer answers in addition to its own; repeatable. "
        "The socket belongs to the first one's group",
    )


def _add_challenge(parser: argparse.ArgumentParser, challenge: str, asker: str) -> None:
    challenge += ": 16 to 86 letters, digits, - and _"
    parser.add_argument("--challenge", metavar="TEXT", required=True, help=challenge)
    parser.add_argument("--asker", metavar="NAME", default="", help=asker)


def run_add_unlock(args: argparse.Namespace) -> int:
    from holdfast.cli.input.agent_places import paths_of
    from holdfast.cli.input.input_slots import given_keys, open_existing
    from holdfast.cli.screen.screen import finish
    from holdfast.core.clock import SystemEntropy
    from holdfast.identity.acts.make_agent import check_unlock_files

    home = acting_home(args)
    if home.vault is None:
        raise BadSettings(f"{home.settings_file} has no setting `vault`", hint="set it under [identity] in that file")
    if args.unlock_file is None and args.credential is None:
        raise BadInput("nothing to add", hint="give --unlock-file FILE or --credential NAME")
    check_unlock_files(home.state, paths_of([args.unlock_file] if args.unlock_file else []))
    with open_existing(home.vault, "--passphrase-fd", args.passphrase_fd, what="the vault") as vault:
        keys = given_keys("", None, args.unlock_file, args.credential, what="the vault")
        made = [vault.add_slot(key, SystemEntropy()) for key in keys]
    fields = {"vault": str(home.vault), "added": [{"kind": one.kind, "source": one.source} for one in made]}
    return finish(args, fields, "\n".join(f"added: {one.kind} {one.source}" for one in made))


def run_signer(args: argparse.Namespace) -> int:
    import asyncio
    import os
    from pathlib import Path

    from holdfast.cli.input.input_slots import open_existing
    from holdfast.host.hardening import harden
    from holdfast.host.log import open_log
    from holdfast.identity.speaker.signer_process import serve_signer

    harden()
    home = acting_home(args)
    if home.vault is None:
        raise BadSettings(f"{home.settings_file} has no setting `vault`", hint="set it under [identity] in that file")
    allowed = [_user(text) for text in args.allow]
    given = Path(os.path.abspath(args.socket)) if args.socket else None
    path = given or home.signer or home.folder / "signer.sock"
    vault = open_existing(home.vault, "", None, what="the vault")
    users = {os.geteuid(), *(user for user, _ in allowed)}
    group = next((group for user, group in allowed if user != os.geteuid()), None)
    asyncio.run(serve_signer(home, vault, path=path, users=users, group=group, log=open_log()))
    return 0


def _user(text: str) -> tuple[int, int]:
    """Number and main group of a user."""
    import pwd

    try:
        found = pwd.getpwuid(int(text)) if text.isdecimal() else pwd.getpwnam(text)
        return found.pw_uid, found.pw_gid
    except KeyError:
        if text.isdecimal():
            return int(text), int(text)
        raise BadInput(f"there is no user {text!r} on this machine") from None
