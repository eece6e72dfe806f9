"""Changing the roster, with the vault open: a person's act.

Where hosts share a journal the next version is signed while the row in the journal is held, so two hosts never sign the
same number. Elsewhere the home's own file is held; two hosts with journals of their own may then sign the same number,
which everyone who sees both calls a fork (statements/roster.py).

A change that is there already is not signed again: a command that was killed can be run again. The file in the home is
written after the journal; a kill in between leaves the older file, which the next look joins with the journal's.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace

from holdfast.app.instances.standing import (
    FETCH_HINT,
    JOIN_HINT,
    ROSTER_TEXT,
    SeenHost,
    behind_text,
    find_standing,
    forget_seen,
    is_behind,
    lines_of,
    note_host,
    note_removed,
    read_seen,
    text_of_lines,
)
from holdfast.core.clock import Clock, Entropy, SystemClock
from holdfast.errors import BadInput, IsStandby, KeysReplaced, NotEnrolled
from holdfast.identity.files.own_log import home_lock
from holdfast.identity.files.roster_file import join_roster, roster_lines
from holdfast.identity.lease.enrolment import destroy_enrolment, find_enrolment, find_own_key, keep_enrolment
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.records.ed25519 import Signatures
from holdfast.identity.records.encodings import PublicKey
from holdfast.identity.records.secret_bytes import KeyPair
from holdfast.identity.speaker.open_speaker import VaultSpeaker, home_speaker
from holdfast.identity.statements.certificate import Role
from holdfast.identity.statements.roster import HOST_FORM, INSTANCES_MAX, NAME_FORM, Enrolled, RosterView, join_rosters
from holdfast.identity.vault.vault import Vault
from holdfast.instances.sent_texts import SENT, drop_texts, parse_sent
from holdfast.journal.admin import SharedState
from holdfast.journal.bind import journal_at
from holdfast.layout.agent_home import AgentHome

NONE_ACTS = "no other instance would act"
NONE_ACTS_HINT = "promote another one first: `holdfast instance promote --instance NAME`"
Edit = Callable[[tuple[Enrolled, ...]], tuple[Enrolled, ...]]


@dataclass(slots=True)
class RosterChange:
    """The roster of one agent, at hand in one of its folders."""

    home: AgentHome
    vault: Vault
    clock: Clock
    entropy: Entropy
    port: Signatures
    speaker: VaultSpeaker
    shared: SharedState | None

    @classmethod
    def at(cls, home: AgentHome, vault: Vault, *, clock: Clock, entropy: Entropy, port: Signatures) -> RosterChange:
        speaker = home_speaker(home.folder, vault, clock, port)
        return cls(home, vault, clock, entropy, port, speaker, journal_at(home.journal).find_shared())

    def view(self) -> RosterView:
        """Raises KeysReplaced where the newest version was signed by keys that are not known here."""
        told = () if self.shared is None else lines_of(self.shared.read_text(ROSTER_TEXT))
        self._check_known(told)
        return join_roster(self.home.folder, told, self.log, self.port)

    def _check_known(self, told: tuple[bytes, ...]) -> None:
        if is_behind(told, self.log):
            raise KeysReplaced(behind_text(self.home), hint=FETCH_HINT)

    @property
    def log(self) -> KeyLog:
        return self.speaker.log()

    def own_key(self) -> PublicKey | None:
        return find_own_key(self.home.instance, id=self.speaker.id, clock=self.clock)

    def own(self) -> Enrolled | None:
        key = self.own_key()
        return None if key is None else self.view().find(key)

    def get_named(self, name: str) -> Enrolled:
        """Raises NotEnrolled."""
        return get_named(self.view(), name)

    def is_listed(self, name: str) -> bool:
        return any(one.name == name for one in _listed(self.view()))

    def get_listed(self, name: str) -> Enrolled:
        """Also one that only one of two rosters of the same version lists: who removed it can do so again.
        Raises NotEnrolled."""
        view = self.view()
        return next((one for one in _listed(view) if one.name == name), None) or get_named(view, name)

    def apply(self, edit: Edit) -> RosterView:
        """The next version: what `edit` makes of the list. Nothing is signed where that changes nothing.
        Raises KeysReplaced as `view` does."""
        log = self.log

        def signed(told: tuple[bytes, ...]) -> tuple[bytes, ...]:
            self._check_known(told)
            view = join_rosters((*roster_lines(self.home.folder), *told), log, port=self.port)
            wanted = edit(view.enrolled)
            if view and not view.forked and wanted == view.enrolled and view.rank[:2] == log.position:
                return view.lines()
            if len(wanted) > INSTANCES_MAX:
                raise BadInput(f"an agent may have at most {INSTANCES_MAX} instances")
            return (self.speaker.roster(view, wanted).line(),)

        if self.shared is not None:
            # A removal that is lost with a region would let the removed host act again.
            text = self.shared.change_text(
                ROSTER_TEXT, lambda text: text_of_lines(signed(lines_of(text))), durable=True
            )
            return join_roster(self.home.folder, lines_of(text), log, self.port)
        with home_lock(self.home.folder):
            lines = signed(())
        return join_roster(self.home.folder, lines, log, self.port)

    @property
    def hosts(self) -> bool:
        """Whether the instances share a journal."""
        return journal_at(self.home.journal).hosts

    def enrol_here(
        self, name: str, *, role: Role = Role.PRIMARY, instead: bool = False, alone: bool = False
    ) -> RosterView:
        """This folder is an instance from here on, instead of the one with this name, or as the only one; its key is
        durable before the roster names it."""
        key = find_enrolment(self.home.instance, id=self.speaker.id, clock=self.clock)
        if key is None:
            key = KeyPair.new(self.entropy)
            keep_enrolment(self.home.instance, key, id=self.speaker.id, clock=self.clock)
        with key:
            one = Enrolled(name=name, key=key.public, role=role, host=host_name())

        def edit(listed: tuple[Enrolled, ...]) -> tuple[Enrolled, ...]:
            kept = () if alone else tuple(other for other in listed if not instead or other.name != name)
            return listed if (one,) == listed or (one in listed and not alone) else with_instance(kept, one)

        view = self.apply(edit)
        if self.shared is not None:
            note_host(self.shared, self.home, self.clock, one.key)
        return view

    def check_not_removed(self) -> None:
        """Raises NotEnrolled where the key of this folder was removed from the roster: only an invite brings a host
        back, so that nobody undoes a removal by mistake. The host has the agent's vault all the same."""
        if self.shared is not None and self.own_key() in read_seen(self.shared).removed:
            raise NotEnrolled(f"the folder {self.home.folder} was removed from the roster of its agent", hint=JOIN_HINT)

    def adopt_here(self) -> None:
        """After this folder was moved or restored here by its owner: it takes the place of the primary that it was, if
        the roster still counts and does not know it."""
        view = self.view()
        if not view or self.own() is not None:
            return
        acting = [one for one in view.enrolled if one.role is Role.PRIMARY]
        if not self.hosts and len(acting) == 1:
            self.enrol_here(acting[0].name, instead=True)
            return
        names = {one.name for one in view.enrolled}
        free = (f"{default_name()[:29]}-{number}" for number in range(2, INSTANCES_MAX + 2))
        self.enrol_here(next(one for one in (default_name(), *free) if one not in names))

    def remove(self, name: str) -> RosterView:
        """Raises NotEnrolled; IsStandby where no instance would act. Safe to repeat on the host that removes, with
        `finish_removals` after it."""
        gone = self.get_listed(name)
        edit = self._still_acting(lambda listed: tuple(one for one in listed if one.name != name))
        edit(self.view().enrolled)  # before the key is noted as removed
        if self.shared is not None:
            note_removed(self.shared, gone.key)
        view = self.apply(edit)
        if gone.key == self.own_key():
            destroy_enrolment(self.home.instance)
        return view

    def find_removed_hosts(self) -> dict[str, SeenHost]:
        """By the key of instances that were removed: the hosts that `finish_removals` has still to forget."""
        if self.shared is None:
            return {}
        seen, listed = read_seen(self.shared), {one.key for one in _listed(self.view())}
        return {key: one for key, one in seen.bound.items() if key in seen.removed and key not in listed}

    def finish_removals(self, forget: Callable[[str], None]) -> None:
        """What instances that were removed leave in the shared journal goes. First, by `forget`, what is kept for their
        hosts: it waits until their workers have stopped. Then the memory updates that nobody reads. Also after a
        removal that was interrupted."""
        if self.shared is None:
            return
        removed = self.find_removed_hosts()
        kept = {one.host for key, one in read_seen(self.shared).bound.items() if key not in removed}
        for host in {one.host for one in removed.values()} - kept:  # a host may have joined again
            forget(host)
        names = {one.name for one in _listed(self.view())}
        for name in parse_sent(self.shared.read_text(SENT)):
            if name not in names:
                drop_texts(self.shared, name)
        forget_seen(self.shared, tuple(map(PublicKey, removed)))

    def give_role(self, name: str, role: Role) -> RosterView:
        self.get_named(name)
        return self.apply(lambda listed: _with_role(listed, name, role))

    def step_down(self, name: str) -> RosterView:
        """This instance waits from now on. Raises NotEnrolled; IsStandby where no other one would act."""
        return self.apply(self._still_acting(lambda listed: _with_role(listed, name, Role.STANDBY)))

    def _still_acting(self, edit: Edit) -> Edit:
        """The same edit, judged inside the act: another host may have changed the roster since a person was asked. Two
        hosts that step down or remove each other at once would leave none that acts."""
        own = self.own_key()

        def judged(listed: tuple[Enrolled, ...]) -> tuple[Enrolled, ...]:
            if all(one.key != own for one in listed):
                raise NotEnrolled(f"the folder {self.home.folder} is not in the roster of its agent any more")
            wanted = edit(listed)
            if _acts(listed) and not _acts(wanted):
                raise IsStandby(NONE_ACTS, hint=NONE_ACTS_HINT)
            return wanted

        return judged


def _listed(view: RosterView) -> tuple[Enrolled, ...]:
    return (*view.enrolled, *(one for version in view.versions for one in version.record.instances))


def _acts(listed: tuple[Enrolled, ...]) -> bool:
    return any(one.role is Role.PRIMARY for one in listed)


def _with_role(listed: tuple[Enrolled, ...], name: str, role: Role) -> tuple[Enrolled, ...]:
    return tuple(replace(one, role=role) if one.name == name else one for one in listed)


def get_named(view: RosterView, name: str) -> Enrolled:
    """Raises NotEnrolled."""
    found = view.named(name)
    if found is None:
        names = ", ".join(one.name for one in view.enrolled) or "none"
        raise NotEnrolled(
            f"no instance of this agent is named {name!r}; enrolled: {names}",
            hint="give one of these names; `holdfast instance list` shows more about them",
        )
    return found


def check_named(home: AgentHome, name: str) -> None:
    """Raises NotEnrolled. Needs no vault."""
    get_named(find_standing(home, clock=SystemClock()).view, name)


def with_instance(listed: tuple[Enrolled, ...], one: Enrolled) -> tuple[Enrolled, ...]:
    """The list with this instance. Raises BadInput where another one has its name."""
    if any(other.name == one.name and other.key != one.key for other in listed):
        raise BadInput(
            f"there is an instance named {one.name!r} already",
            hint=f"choose another name, or run `holdfast instance remove {one.name}` first",
        )
    return listed if one in listed else (*(other for other in listed if other.key != one.key), one)


def check_name(name: str) -> str:
    """Raises BadInput."""
    if not re.fullmatch(NAME_FORM, name, re.ASCII):
        raise BadInput(f"{name!r} is not a name for an instance", hint="use 1 to 32 lower-case letters, digits and `-`")
    return name


def host_name() -> str:
    """This machine's name, in the form that a roster takes."""
    found = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:64].strip("._-")
    return found if re.fullmatch(HOST_FORM, found, re.ASCII) else "host"


def default_name() -> str:
    return re.sub(r"[^a-z0-9-]", "-", host_name().partition(".")[0].lower())[:32].strip("-") or "host"
