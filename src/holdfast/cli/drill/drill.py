"""`holdfast drill`: rehearse failures in a shadow of the agent, and read, check and sign what was measured."""

from __future__ import annotations

import argparse

from holdfast.cli.command import Commands, add_flag, add_options, imported, new_noun, new_verb
from holdfast.cli.input.input_sheet import add_words_options


def add_parser(commands: Commands) -> None:
    verbs = new_noun(commands, "drill").help("""
        Drills make a failure for real, in a shadow: a copy of the agent with its own mounts, processes and network.
        They recover it with the commands of the runbook and measure how long that took and what was lost. Production
        is compared before and after. Each drill writes a report that the agent signs.
        examples:
          holdfast drill list
          holdfast drill run --quarterly
          holdfast drill report
          holdfast drill verify
        """)
    parser = new_verb(verbs, "list", imported("drill.show", "run_list")).help("""
        every drill, when it last ran, and what came of it

        List the drills, with their newest report that is signed and in order.
        columns:
          drill    its name
          code     its short name
          every    how often it should run
          last     when it last ran
          verdict  pass, pass with findings, fail, not applicable, not proven
          rto      measured recovery time
          needs    words: a person types the recovery words
        examples:
          holdfast drill list
          holdfast drill list --home ~/agents/ada --json
        """)
    add_options(parser, "--home", "--json")
    _add_run(verbs)
    parser = new_verb(verbs, "report", imported("drill.show", "run_report")).help("""
        show a report, or the year at a glance

        Print a report as Markdown, HTML or JSON. Without a name, the newest one. With --index, one line for each
        report of the last year, and how many of the drills ran.
        examples:
          holdfast drill report
          holdfast drill report 2026-11-16-host-loss-7 --format html > report.html
          holdfast drill report --index
        """)
    parser.add_argument(
        "name", metavar="REPORT", nargs="?", default="", help="its id, or its file (default: the newest)"
    )
    parser.add_argument("--format", choices=("md", "html", "json"), default="md", help="default: md")
    add_flag(parser, "--index", "one line for each report of the last year")
    add_options(parser, "--home", "--json")
    parser = new_verb(verbs, "verify", imported("drill.show", "run_verify")).help("""
        check that reports are unchanged, signed and complete

        Recompute every digest and signature of these reports, and that each follows the one before. Without files:
        all reports of the agent in this folder. On another machine, give the agent's key log with --log; nothing else
        of the agent is needed.
        examples:
          holdfast drill verify
          holdfast drill verify reports/*.json --log kel.jsonl
          holdfast drill verify *.json --log kel.jsonl --allowed-signers signers
        """)
    parser.add_argument("file", metavar="FILE", nargs="*", help="reports (default: those of the agent)")
    parser.add_argument("--log", metavar="FILE", default="", help="a copy of the agent's kel.jsonl")
    parser.add_argument("--id", metavar="ID", default="", help="the agent's id, if you know it")
    parser.add_argument(
        "--allowed-signers", metavar="FILE", default="", help="whose SSH keys count, as ssh-keygen(1) describes it"
    )
    add_options(parser, "--home", "--json")
    parser = new_verb(verbs, "sign", imported("drill.show", "run_sign")).help("""
        add your signature to a report

        Sign a report with your SSH key: you were there, or you approve it. The agent's own signature says what was
        measured; yours says that a person looked at it.
        examples:
          holdfast drill sign 2026-11-16-host-loss-7 --key ~/.ssh/id_ed25519 --name 'Ada Byron'
          holdfast drill sign 2026-11-16-host-loss-7 --key ~/.ssh/id_ed25519 --name 'Ada Byron' --role approver
        """)
    parser.add_argument("name", metavar="REPORT", help="its id, or its file")
    parser.add_argument(
        "--key", metavar="FILE", required=True, help="your private SSH key, or the public one of an agent"
    )
    parser.add_argument("--name", metavar="NAME", required=True, dest="signer", help="your name")
    parser.add_argument(
        "--role", metavar="ROLE", default="lead", help="lead, approver, observer, auditor (default: lead)"
    )
    add_options(parser, "--home", "--json")
    parser = new_verb(verbs, "findings", imported("drill.show", "run_findings")).help("""
        what the newest reports found, and how to test it again

        List the findings and failures of the newest report of each drill.
        columns:
          report    where it was found
          severity  critical, major, minor
          finding   what is wrong
          retest    the command that tests it again
        examples:
          holdfast drill findings
          holdfast drill findings --json
        """)
    add_options(parser, "--home", "--json")
    parser = new_verb(verbs, "stand", imported("drill.stand")).help("""
        list, bring forward or end standing copies

        A standing copy is the newest snapshot of an agent, restored beside it with a rescue key by `holdfast drill run
        host-loss --stand`. It can be read, and neither signs nor sends. While a worker of the agent runs, the copy
        follows each verified snapshot. `forward` brings it to the newest one now, `end` removes it.
        columns:
          agent     its name
          snapshot  the number of the snapshot
          made      when the snapshot was made
          behind    yes: there is a newer verified snapshot
          folder    where the copy is
        examples:
          holdfast drill stand
          holdfast drill stand forward --home ~/agents/ada
          holdfast drill stand end --home ~/agents/ada
        """)
    parser.add_argument(
        "act", metavar="ACT", nargs="?", choices=("list", "forward", "end"), default="list", help="default: list"
    )
    add_options(parser, "--home", "--json")
    parser = new_verb(verbs, "schedule", imported("drill.run", "run_schedule")).help("""
        print or install a timer for drills

        Print a systemd service and timer for your user, and a line for cron, that run `holdfast drill run --due` each
        night. --install writes the two files; you start them.
        examples:
          holdfast drill schedule
          holdfast drill schedule --install
        """)
    add_flag(parser, "--install", "write the files to ~/.config/systemd/user")
    add_options(parser, "--home", "--json")


def _add_run(verbs: Commands) -> None:
    parser = new_verb(verbs, "run", imported("drill.run")).help("""
        run drills, and write a signed report of each

        Run drills in a shadow of the agent, one after the other. Production stays as it is; a drill that finds a
        change of it fails. Some drills need the recovery words: Holdfast asks for them at a terminal, or reads them
        from a descriptor. Without them such a drill proves nothing, and says so.

        Exit code 0: all that ran passed; 9: a drill failed; 5: a drill could not run, or none applies.
        examples:
          holdfast drill run host-loss
          holdfast drill run --quarterly --home ~/agents/ada
          holdfast drill run --quarterly --on ssh://root@spare.example
          holdfast drill run --deploy --json
          holdfast drill run --daily --rescue-key /mnt/keys/ada-rescue
          holdfast drill run --all --words-fd 3 3< /dev/shm/words
        """)
    parser.add_argument("name", metavar="DRILL", nargs="*", help="names or codes; `holdfast drill list` shows them")
    add_flag(parser, "--quarterly", "server death, restore on fresh infrastructure, identity, continuity, report")
    add_flag(parser, "--daily", "a test restore on the path of a recovery")
    add_flag(parser, "--deploy", "process-kill and hand-off")
    add_flag(parser, "--all", "every drill")
    add_flag(parser, "--due", "every drill that is due and needs no person; for timers")
    add_options(parser, "--home")
    parser.add_argument(
        "--place", metavar="NAME", default="", help="restore from this place (default: one on another disk)"
    )
    parser.add_argument(
        "--on",
        metavar="ADDRESS",
        default="",
        help="of host-loss, and of test-restore with a rescue key: restore on this machine, ssh://user@host:port; it "
        "needs an ssh server and the same version of Python (default: a fresh root on this machine)",
    )
    parser.add_argument("--rsh", metavar="COMMAND", default="", help="use this command instead of ssh for --on")
    add_flag(
        parser,
        "--production",
        "not in a shadow: kill the worker that serves now (process-kill), or read its own hand-off file (hand-off); "
        "asks for the agent's name",
    )
    parser.add_argument("--seed", metavar="N", type=_whole, help="for random moments (default: another one each time)")
    parser.add_argument(
        "--lead", metavar="NAME", default="", help="who leads the drill, for the report (default: user@host)"
    )
    parser.add_argument(
        "--folder",
        metavar="DIR",
        default="",
        help="where the shadow's writes land (default: ~/.cache/holdfast/drills/NAME)",
    )
    parser.add_argument(
        "--rescue-key",
        metavar="FILE",
        default="",
        help="of test-restore: read the backup with this key, on a fresh root; of --stand: what restores the copy",
    )
    add_flag(
        parser,
        "--stand",
        "of host-loss: keep a restored copy, which a worker brings forward with each verified snapshot; of "
        "test-restore: test that copy. `holdfast drill stand` shows and ends it",
    )
    add_words_options(parser)
    add_options(parser, "--json")


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 16 and int(text) < 2**53):
        raise argparse.ArgumentTypeError(f"{text!r}: it must be a whole number from 0 to 2^53")
    return int(text)
