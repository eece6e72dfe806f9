"""`holdfast relay`: run a relay; and the relays of an agent: add, remove, list, find, doctor."""

from __future__ import annotations

import argparse

from holdfast.cli.command import Commands, imported, new_noun, new_verb


def add_parser(commands: Commands) -> None:
    verbs = new_noun(commands, "relay").help("""
        A relay is a server that witnesses the key logs of agents and keeps their newest profile and backup head.
        Anyone can run one. An agent uses a relay by its address, https://relay.example#z6Mk...: host and key.
        examples:
          holdfast relay serve --folder /var/lib/holdfast-relay
          holdfast relay invite --folder /var/lib/holdfast-relay
        """)
    _add_serve(verbs)
    _add_invite(verbs)


def _add_serve(verbs: Commands) -> None:
    parser = new_verb(verbs, "serve", imported("relay.serve", "run_serve")).help("""
        run a relay until SIGTERM or Ctrl-C

        Serve a relay from a folder of its own. The first start makes the relay's key in it (witness.seed, mode 0600)
        and prints the address that agents use. Every answer is signed with that key, and nothing is answered before it
        is synced to disk. Settings are in relay.toml in the folder (`holdfast explain relay-settings`); the options
        here come before them. Without TLS files the relay listens on this machine alone, for a proxy that does TLS.
        Needs the extra `relay`: pip install 'holdfast[relay]'.
        examples:
          holdfast relay serve --folder relay
          holdfast relay serve --folder /var/lib/holdfast-relay --url https://relay.example
        """)
    _add_folder(parser)
    parser.add_argument("--listen", metavar="HOST:PORT", default="", help="default: 127.0.0.1:7411; port 0: a free one")
    parser.add_argument("--url", metavar="URL", default="", help="the address that agents use: https://HOST[:PORT]")
    parser.add_argument(
        "--registration",
        choices=("invite", "open"),
        default="",
        help="who may register: agents with an invite (the default), or any agent, with limits per network address",
    )
    parser.add_argument(
        "--json", action="store_true", help="print the address and key as one line of JSON once the relay answers"
    )


def _add_invite(verbs: Commands) -> None:
    parser = new_verb(verbs, "invite", imported("relay.serve", "run_invite")).help("""
        make an invite with which one agent may register

        Print a new invite of the relay in this folder. It registers one agent, once; send it to the agent's owner as
        you would send a password. The relay may be running. The owner gives it in a file: --invite FILE.
        examples:
          holdfast relay invite --folder /var/lib/holdfast-relay > invite
          holdfast relay invite --folder relay --note ada --json
        """)
    _add_folder(parser)
    parser.add_argument("--note", default="", help="for whom it is; kept at the relay")
    parser.add_argument("--json", action="store_true", help="print JSON (`holdfast explain json`)")


def _add_folder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--folder", metavar="DIR", default=".", help="the relay's folder (default: this one)")
