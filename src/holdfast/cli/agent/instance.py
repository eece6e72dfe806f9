"""`holdfast instance invite|join|list|promote|yield|remove`: several instances of one agent."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from holdfast.cli.command import (
    Commands,
    acting_home,
    add_flag,
    add_options,
    add_witnesses,
    home_of,
    new_noun,
    new_verb,
)
from holdfast.cli.recover.migrate import checked_vault_of, move_means, open_vault_of
from holdfast.cli.screen.screen import print_json, print_result, print_table, talk
from holdfast.errors import BadInput, BadSettings, NotEnrolled

if TYPE_CHECKING:
    from holdfast.app.instances.roster_change import RosterChange
    from holdfast.identity.statements.roster import Enrolled
    from holdfast.layout.agent_home import AgentHome


def add_parser(commands: Commands) -> None:
    verbs = new_noun(commands, "instance").help("""
        Several instances of one agent. Each is a folder on a host of its own, enrolled by name in a signed
        roster. Hosts that share a journal in PostgreSQL all act at once; when one fails, the others continue
        its tasks. Where each host has its own journal file, one instance acts (primary) and the others wait
        (standby).
        examples:
          holdfast instance invite south ada-south.invite
          holdfast instance join ada-south.invite --home ada --vault ~/.config/holdfast/vault/ada
          holdfast instance list
        """)
    parser = new_verb(verbs, "invite", run_invite).help("""enrol an instance and write its package

        Enrol a new instance and write one sealed file for its host. The agent runs on here. The agent's vault
        opens the file. If the agent has no roster yet, this folder is enrolled first. If a run is
        interrupted, run the same command again to finish it.
        examples:
          holdfast instance invite south ada-south.invite
          holdfast instance invite south ada-south.invite --as north --json
        """)
    parser.add_argument("name", metavar="NAME", help="the new instance: lower-case letters, digits and `-`")
    parser.add_argument("package", metavar="FILE", help="where to write the package; outside the agent's folder")
    parser.add_argument("--host", metavar="TEXT", default="", help="its host, for people (default: NAME)")
    _add_own_name(parser)
    add_flag(parser, "--standby", "with a shared journal: the instance waits until `holdfast instance promote`")
    add_options(parser, "--home", "--passphrase-fd", "--yes", "--json")
    parser = new_verb(verbs, "join", run_join).help("""become an instance: install a package on this host

        Install the package of `holdfast instance invite`: the agent's folder on this host, with its own
        instance key. Copy the vault here first. Without FILE, the folder of a host that already shares the
        agent's journal is enrolled as it is.
        examples:
          holdfast instance join ada-south.invite --home ada --vault ~/.config/holdfast/vault/ada
          holdfast instance join --home ada
        """)
    parser.add_argument("package", metavar="FILE", nargs="?", help="the package that `instance invite` wrote")
    _add_own_name(parser)
    parser.add_argument("--vault", metavar="DIR", help="the agent's vault on this host (needed with FILE)")
    parser.add_argument("--second", metavar="DIR", help="where the next key is kept on this host")
    parser.add_argument("--arbiter", metavar="DIR", help="the arbiter's folder on this host")
    add_witnesses(parser, "--witness", "an existing witness, where it is on this host; repeatable")
    add_options(parser, "--home", "--passphrase-fd", "--yes", "--json")
    parser = new_verb(verbs, "list", run_list).help("""show the enrolled instances

        Show every enrolled instance. Presence is known where hosts share a journal.
        columns:
          name      its name in the roster; `*`: this folder
          role      primary: it acts; standby: it waits
          host      as the roster names it
          presence  alive: it has a worker that acts; away: it has none, or waits; unseen: it never ran; -: not known
          lag       remarks of the shared journal that are not in its memory files yet; -: not known
          files     memory files whose changes on this host it has not confirmed yet; -: not known
        examples:
          holdfast instance list
          holdfast instance list --json
        """)
    add_options(parser, "--home", "--json")
    parser = new_verb(verbs, "promote", run_promote).help("""let an instance act

        With a shared journal: the instance acts from now on. With a journal of its own, this standby takes
        over: from FILE, which `holdfast instance yield` wrote, and nothing is in doubt; or, if the primary is
        lost, from the newest verified backup. New keys then lock out the old primary, its open tasks are in
        doubt here, and the other standbys must be invited again. The command waits until an old primary that
        still runs has stopped: 100 s, if you changed no setting. It reads the settings in the backup. If the
        old primary's worker ran with --grace, --lease-ttl or --config, give its values here too: else this
        instance may act before the old one has stopped. If a run is interrupted, run the same command again.
        examples:
          holdfast instance promote
          holdfast instance promote --primary-is-off
          holdfast instance promote --grace 600
          holdfast instance promote ada.handoff
          holdfast instance promote --instance south
        """)
    parser.add_argument("package", metavar="FILE", nargs="?", help="the package of a planned hand-off")
    parser.add_argument(
        "--instance", metavar="NAME", help="with a shared journal: another instance (default: this one)"
    )
    parser.add_argument(
        "--place",
        metavar="ADDRESS",
        action="append",
        default=[],
        help="where backups are, if not in places.json; repeatable",
    )
    add_flag(parser, "--primary-is-off", "the old primary is switched off for certain: do not wait for it to stop")
    for option, key in (("--grace", "grace_s"), ("--lease-ttl", "lease_ttl_s")):
        told = f"the {option} of the old primary's worker, or {key} of its --config (default: {key} in the backup)"
        parser.add_argument(option, type=float, metavar="S", help=told)
    add_options(parser, "--home", "--passphrase-fd")
    parser.add_argument(
        "--second-passphrase-fd", metavar="N", help="read the passphrase of the second place from this descriptor"
    )
    add_options(parser, "--yes", "--json")
    parser = new_verb(verbs, "yield", run_yield).help("""hand over: this instance waits from now on

        With a shared journal: this instance ends its calls, its tasks go back to the queue, and the others
        continue. With a journal of its own: the agent stops here and travels in one sealed file to the
        standby NAME, which takes it with `holdfast instance promote FILE`. Nothing is lost, so no task is in
        doubt. `holdfast migrate cancel` undoes it.
        examples:
          holdfast instance yield
          holdfast instance yield south ada.handoff
        """)
    parser.add_argument("name", metavar="NAME", nargs="?", help="the standby that takes over")
    parser.add_argument("package", metavar="FILE", nargs="?", help="where to write the package")
    parser.add_argument(
        "--wait", type=float, default=60.0, metavar="S", help="seconds to wait for workers to stop (default: 60)"
    )
    add_options(parser, "--home", "--passphrase-fd", "--json")
    parser = new_verb(verbs, "remove", run_remove).help("""take an instance out of the roster

        Remove an instance. Its folder is a copy from then on: it runs no task, sends nothing and backs up nothing. A
        worker on it stops within seconds if it reaches the shared journal or folder. Its vault still has the agent's
        keys: if you do not trust that host any more, run `holdfast identity rotate --why stolen` too. If a run is
        interrupted, run the same command again; if it removed its own host, on another one.
        examples:
          holdfast instance remove south
        """)
    parser.add_argument("name", metavar="NAME", help="the instance")
    add_options(parser, "--home", "--passphrase-fd", "--yes", "--json")


def _add_own_name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--as",
        dest="own_name",
        metavar="NAME",
        default="",
        help="the name of this instance (default: this host's name)",
    )


def run_invite(args: argparse.Namespace) -> int:
    from holdfast.app.instances.roster_change import check_name
    from holdfast.cli.input.agent_places import path_of
    from holdfast.identity.statements.certificate import Role
    from holdfast.recovery.invite import invite

    home = acting_home(args)
    name = check_name(args.name)
    with _changing(args, home) as change:
        _enrol_first(args, change)
        role = Role.PRIMARY if change.hosts and not args.standby else Role.STANDBY
        done = invite(change, path_of(args.package), name=name, role=role, host=args.host or name)
    _say(args, done)
    if not args.json:
        talk(f"next, on the other host: copy the vault there, then `holdfast instance join {done.package} ...`")
        talk("risk: join with this file on one host only, and destroy all copies of it")
    return 0


def run_join(args: argparse.Namespace) -> int:
    import asyncio
    from pathlib import Path

    from holdfast.app.instances.examine import standby_faults
    from holdfast.cli.input.agent_places import path_of, witnesses_of
    from holdfast.layout.agent_home import home_folder, load_home
    from holdfast.recovery.invite import Joining
    from holdfast.recovery.move_in import HostPaths

    if not args.package:
        return _join_here(args)
    if not args.vault:
        raise BadInput("--vault DIR is needed: the agent's vault on this host opens the package")
    here = HostPaths(
        second=str(path_of(args.second)) if args.second else "",
        arbiter=str(path_of(args.arbiter)) if args.arbiter else "",
        witnesses=witnesses_of(args.witness or ()),
    )
    with open_vault_of(args, path_of(args.vault)) as vault:
        joining = Joining(path_of(args.package), home_folder(args.home), move_means(vault), here)
        done = asyncio.run(joining.run())
    _say(args, done)
    if not args.json:
        acts = "it takes tasks at once" if done.shared and done.role == "primary" else "it waits"
        talk(f"next: `holdfast worker APP --home {shlex.quote(str(done.home))}`; {acts}")
        for fault in standby_faults(load_home(Path(done.home))):
            talk(f"risk: {fault.text}: {fault.mend}")
    return 0


def _join_here(args: argparse.Namespace) -> int:
    """A host that shares the journal already is enrolled as it is."""
    home = acting_home(args)
    with _changing(args, home) as change:
        if not change.hosts:
            raise BadInput(
                f"{home.folder} has a journal of its own: a copy of a folder is not an instance",
                hint="run `holdfast instance invite NAME FILE` where the agent runs, and give FILE here",
            )
        own = change.own()
        if own is None:
            change.check_not_removed()
            _enrol_first(args, change, join=True)
            own = change.own()
        assert own is not None  # it was enrolled just now
    _print(args, {"home": str(home.folder), "name": own.name, "role": own.role.value, "key": own.key})
    return 0


def _enrol_first(args: argparse.Namespace, change: RosterChange, *, join: bool = False) -> None:
    """The folder that invites is an instance itself. Hosts that share the journal and are not enrolled wait from then
    on: a person knows."""
    from holdfast.app.instances.presence import other_live_hosts
    from holdfast.app.instances.roster_change import check_name, default_name
    from holdfast.cli.input.terminal import confirm
    from holdfast.layout.moved import check_not_moved

    view = change.view()
    if view and not join:
        _own_name(change)
        return
    check_not_moved(change.home.instance)
    others = other_live_hosts(change.home) if not view else []
    if others:
        names = ", ".join(others)
        confirm(
            "enrol",
            f"other hosts serve this agent now: {names}. They wait until you run "
            "`holdfast instance join` on each of them",
            yes=args.yes,
        )
    change.enrol_here(check_name(args.own_name or default_name()))


def run_list(args: argparse.Namespace) -> int:
    from holdfast.app.instances.presence import list_instances
    from holdfast.app.instances.standing import FORK_FIX, FORKED
    from holdfast.core.clock import SystemClock

    listed = list_instances(home_of(args), clock=SystemClock())
    if args.json:
        print_json(listed)
        return 0
    rows = [
        [
            f"{one.name}{' *' if one.here else ''}",
            one.role,
            one.host,
            one.presence or "-",
            "-" if one.lag is None else str(one.lag),
            "-" if one.unconfirmed is None else str(one.unconfirmed),
        ]
        for one in listed.instances
    ]
    print_table(
        ["name", "role", "host", "presence", "lag", "files"],
        rows,
        empty="no instance is known here"
        if listed.standing == "copy"
        else "the agent has one instance; `holdfast instance invite NAME FILE` adds another",
        state="presence",
    )
    if listed.forked:
        talk(f"{FORKED}; {FORK_FIX}")
    for waits in (listed.waits, *(one.waits for one in listed.instances)):
        if waits:
            talk(f"memory: {waits}")
    for one in listed.unknown:
        talk(f"not enrolled, and waiting: {one}")
    if listed.standing == "copy":
        talk(f"this folder may not act: {listed.text}\nhint: {listed.hint}")
    return 0


def run_promote(args: argparse.Namespace) -> int:
    from holdfast.app.instances.roster_change import check_named
    from holdfast.identity.statements.certificate import Role
    from holdfast.journal.bind import journal_at

    home = acting_home(args)
    if not journal_at(home.journal).hosts:
        if args.instance:
            check_named(home, args.instance)
            raise BadInput(
                "each instance has a journal of its own: one takes over by a command on its own host",
                hint=f"run `holdfast instance promote` on the host of {args.instance}, without --instance",
            )
        return _promote_file(args, home) if args.package else _promote_from_backup(args, home)
    if args.package:
        raise BadInput("the instances share a journal: nothing needs to travel", hint="run the command without FILE")
    with _changing(args, home) as change:
        name = args.instance or _own_name(change)
        view = change.give_role(name, Role.PRIMARY)
    _print(args, {"name": name, "role": Role.PRIMARY.value, "version": view.rank[2]})
    return 0


def _promote_file(args: argparse.Namespace, home: AgentHome) -> int:
    """The planned hand-off: the package of `instance yield` takes the place of this standby's folder."""
    import asyncio

    from holdfast.cli.input.agent_places import path_of
    from holdfast.recovery.move_in import HostPaths, move_in

    identity = home.settings.identity
    here = HostPaths(second=identity.second, arbiter=identity.arbiter, witnesses=home.witnesses)
    with open_vault_of(args, checked_vault_of(home)) as vault:
        done = asyncio.run(move_in(path_of(args.package), home.folder, move_means(vault), here=here))
    _say(args, done)
    if not args.json:
        talk("next: a waiting worker continues by itself; if none runs, start one: `holdfast worker APP`")
    return 0


def _promote_from_backup(args: argparse.Namespace, home: AgentHome) -> int:
    import tempfile
    from pathlib import Path

    from holdfast.backup.open_engine import open_engine
    from holdfast.cli.input.input_slots import open_existing
    from holdfast.cli.input.terminal import confirm
    from holdfast.cli.recover.agent import report_promoted
    from holdfast.cli.screen.progress import Progress
    from holdfast.cli.signals import run_async
    from holdfast.core.clock import SystemClock, SystemEntropy
    from holdfast.identity.records.ed25519 import Sodium
    from holdfast.identity.vault.keyset import KeySet
    from holdfast.layout.settings import make_settings
    from holdfast.recovery.promote import PromoteMeans, get_standby, promote

    given = {"grace_s": args.grace, "lease_ttl_s": args.lease_ttl}
    started_with = {key: value for key, value in given.items() if value is not None}
    make_settings(started_with)  # raises BadSettings, before anything is done
    own = checked_vault_of(home)
    get_standby(home, SystemClock())
    if home.second is None:
        raise BadSettings(
            f"{home.settings_file} has no setting `second`: without the next key the old primary cannot be locked out",
            hint="copy the second place here and set `second`; or run `holdfast recover` with the recovery words",
        )
    confirm(
        "promote",
        f"{home.name} is restored here from its newest backup, and its keys change. The old primary is locked out, and "
        "tasks that it had open are in doubt",
        yes=args.yes,
    )
    with (
        open_vault_of(args, own) as vault,
        open_existing(
            home.second, "--second-passphrase-fd", args.second_passphrase_fd, what="the second place"
        ) as second,
        tempfile.TemporaryDirectory(prefix="holdfast-promote-") as scratch,
        Progress() as news,
    ):
        engine = run_async(open_engine(base=Path(scratch) / "borg", progress=news))
        means = PromoteMeans(
            keys=KeySet(ops=vault, nexts=second),
            engine=engine,
            clock=SystemClock(),
            entropy=SystemEntropy(),
            port=Sodium(),
            tell=news.say,
            primary_is_off=args.primary_is_off,
            started_with=started_with,
        )
        done = run_async(promote(home, means, places=tuple(args.place)))
    report_promoted(args, done)
    return 0


def run_yield(args: argparse.Namespace) -> int:
    import asyncio

    from holdfast.app.instances.presence import check_another_acts
    from holdfast.cli.input.agent_places import path_of
    from holdfast.identity.statements.certificate import Role
    from holdfast.recovery.move_out import MoveOut
    from holdfast.recovery.promote import handed_over

    home = acting_home(args)
    with _changing(args, home) as change:
        if change.hosts:
            if args.name or args.package:
                raise BadInput(
                    "the instances share a journal: nothing needs to travel", hint="give no NAME and no FILE"
                )
            name = _own_name(change)
            check_another_acts(home, name, alive=True)
            view = change.step_down(name)
            _print(args, {"name": name, "role": Role.STANDBY.value, "version": view.rank[2]})
            return 0
        if not args.name or not args.package:
            raise BadInput("each instance has a journal of its own: give NAME and FILE")
        move = MoveOut(home, move_means(change.vault), say=talk, wait_s=args.wait, heir=args.name)
        package = path_of(args.package)
        move.check(package)  # before the roster says that this instance waits
        handed_over(change, args.name)
        done = asyncio.run(move.run(package))
    _say(args, done)
    if not args.json:
        talk(
            f"next, on the host of {args.name}: `holdfast instance promote {done.package}`; then start a worker here "
            "again, which waits as a standby"
        )
        talk("risk: use the package on one host only, and destroy all copies of it")
    return 0


def run_remove(args: argparse.Namespace) -> int:
    from holdfast.app.memory import forget_folder
    from holdfast.cli.input.terminal import confirm
    from holdfast.cli.signals import run_async
    from holdfast.recovery.invite import tell_places

    home = acting_home(args)
    with _changing(args, home) as change:
        _own_name(change)  # one that was removed removes no other
        left = sorted(one.who for one in change.find_removed_hosts().values())
        if left and not change.is_listed(args.name):
            view = change.view()
            talk(f"{args.name} is not in the roster; this ends a removal that was interrupted, of {', '.join(left)}")
        else:
            gone = change.get_listed(args.name)
            _check_removable(change, gone)
            text = f"the folder of {gone.name} on {gone.host} is a copy from now on, and sends nothing"
            confirm("remove", text, yes=args.yes)
            view = change.remove(gone.name)
        change.finish_removals(lambda host: run_async(forget_folder(home, host, say=talk)))
        if not change.hosts:
            run_async(tell_places(home, change.vault, say=talk))
    _print(args, {"name": args.name, "version": view.rank[2], "left": [one.name for one in view.enrolled]})
    return 0


def _check_removable(change: RosterChange, gone: Enrolled) -> None:
    from holdfast.app.instances.presence import check_another_acts
    from holdfast.identity.statements.certificate import Role

    if gone.role is Role.PRIMARY and change.hosts:
        check_another_acts(change.home, gone.name, alive=False)
    elif gone.role is Role.PRIMARY:
        raise BadInput(
            f"{gone.name} is the instance that acts",
            hint="hand over first: `holdfast instance yield` on it, or `holdfast instance promote` on another",
        )
    elif not change.hosts and gone.key == change.own_key():
        raise BadInput(
            f"{gone.name} is this instance, and the others would not hear that it is removed",
            hint=f"run `holdfast instance remove {gone.name}` on the host that acts; then stop the worker here",
        )


def _own_name(change: RosterChange) -> str:
    own = change.own()
    if own is None:
        raise NotEnrolled(f"the folder {change.home.folder} is not in the roster of its agent")
    return own.name


@contextmanager
def _changing(args: argparse.Namespace, home: AgentHome) -> Generator[RosterChange]:
    """The roster, with the vault open; one change at a time in this folder."""
    from holdfast.app.instances.roster_change import RosterChange
    from holdfast.identity.acts.log_act import act_lock

    with open_vault_of(args, checked_vault_of(home)) as vault, act_lock(home.folder):
        means = move_means(vault)
        yield RosterChange.at(home, vault, clock=means.clock, entropy=means.entropy, port=means.port)


def _say(args: argparse.Namespace, done: object) -> None:
    import msgspec

    _print(args, msgspec.to_builtins(done))


def _print(args: argparse.Namespace, fields: dict[str, Any]) -> None:  # Any: JSON
    (print_json if args.json else print_result)(fields)
