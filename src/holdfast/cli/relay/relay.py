"""`holdfast relay`: run a relay; and the relays of an agent: add, remove, list, find, doctor."""

from __future__ import annotations

import argparse

from holdfast.cli.command import Commands, add_list, add_options, imported, new_noun, new_verb


def add_parser(commands: Commands) -> None:
    verbs = new_noun(commands, "relay").help("""
        A relay is a server that witnesses the key logs of agents, keeps their newest profile and backup head, and holds
        their mail while they are away.
        Anyone can run one. An agent uses a relay by its address, https://relay.example#z6Mk...: host and key.
        examples:
          holdfast relay serve --folder /var/lib/holdfast-relay
          holdfast relay add https://relay.example#z6Mk... --handle ada
          holdfast relay list
        """)
    _add_serve(verbs)
    _add_invite(verbs)
    _add_agents_verbs(verbs)


def _add_agents_verbs(verbs: Commands) -> None:
    parser = new_verb(verbs, "add", imported("relay.agent", "run_add")).help("""
        register the agent at a relay, and publish its profile

        Register this agent at a relay: bring it the key log, and publish a new profile that names the relay to all
        relays of the agent. A relay that the agent has already gets everything again. The relay does not become a
        witness of the key log by this: `identity rotate --witness` does that. A worker renews the profile every day.
        examples:
          holdfast relay add https://relay.example#z6Mk...
          holdfast relay add https://relay.example#z6Mk... --handle ada --invite invite.txt
          holdfast relay add https://relay.example#z6Mk... --instead-of old.example
        """)
    parser.add_argument("address", metavar="ADDRESS", help="https://HOST#z6Mk..., as the relay prints it")
    parser.add_argument("--handle", metavar="NAME", help="the agent's name at this relay; first come")
    parser.add_argument(
        "--instead-of",
        metavar="RELAY",
        default="",
        help="leave this relay of the agent in the same step: its host, url or address; it forwards for 90 days",
    )
    parser.add_argument("--operator", metavar="NAME", default="", help="who runs it (default: from the host's name)")
    add_options(parser, "--invite", "--home", "--json")
    parser = new_verb(verbs, "remove", imported("relay.agent", "run_remove")).help("""
        leave a relay; it forwards to the others

        Publish a new profile without this relay. The relay gets it too, and answers with it for 90 days, so that
        others who ask there find the agent's new relays.
        examples:
          holdfast relay remove relay.example
          holdfast relay remove https://relay.example#z6Mk... --json
        """)
    parser.add_argument("relay", metavar="RELAY", help="its host, url or address")
    add_options(parser, "--home", "--json")
    parser = new_verb(verbs, "list", imported("relay.agent", "run_list")).help("""
        the relays of the agent, and what they hold

        Ask every relay of the agent.
        columns:
          relay     its url
          operator  who runs it
          witness   whether it is a witness of the key log
          handles   the agent's names there
          profile   newest, newer (than this folder's), older or none; or why the relay does not answer,
                    'gives the worker no mail' and why, or 'contradicts itself'
        examples:
          holdfast relay list
          holdfast relay list --json
        """)
    add_options(parser, "--home", "--json")
    parser = new_verb(verbs, "find", imported("relay.agent", "run_find")).help("""
        find another agent by its handle or id

        Ask relays for an agent's profile and key log, check both, and say where the agent is to be reached and who
        confirms it. In an agent's folder the agent's own relays are asked too, and a profile that is older than one
        that was seen before is refused.
        examples:
          holdfast relay find ben@relay.example --relay https://relay.example#z6Mk...
          holdfast relay find hf1... --json
        """)
    parser.add_argument("name", metavar="NAME", help="HANDLE@HOST, or an id: hf1...")
    add_list(parser, "--relay", "ADDRESS", "a relay to ask: https://HOST#z6Mk...; repeatable")
    add_options(parser, "--home", "--json")
    parser = new_verb(verbs, "doctor", imported("relay.agent", "run_doctor")).help("""
        what is wrong with the agent's relays, and the command that fixes it

        Ask every relay of the agent: whether it answers with its key, holds the newest key log and profile, and
        whether something there, or what the relay said before, contradicts itself. The exit code is that of
        `holdfast doctor`.
        examples:
          holdfast relay doctor
          holdfast relay doctor --json
        """)
    add_options(parser, "--home", "--json")


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
