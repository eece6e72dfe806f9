"""Binds the ports of mail to the agent's relays; loaded where mail is used."""

from __future__ import annotations

from holdfast.app.mail.shared_keys import with_shared_keys
from holdfast.core.clock import SystemClock
from holdfast.identity.speaker.open_speaker import open_speaker
from holdfast.journal.bind import journal_at
from holdfast.layout.agent_home import AgentHome
from holdfast.relay.client.instance_key import InstanceKey
from holdfast.relay.client.open_mail import AgentMail, open_mail
from holdfast.relay.client.profile import find_own_profile


def open_agent_mail(home: AgentHome, before: InstanceKey | None = None) -> AgentMail:
    """The agent's post and mailbox. `before`: what this process was known by until now. Blocks. Raises what a locked
    vault or a signer that is away raises."""
    speaker = with_shared_keys(home, open_speaker(home, SystemClock()))
    return open_mail(home, speaker, incarnation=journal_at(home.journal).incarnation, before=before)


def has_relays(home: AgentHome) -> bool:
    """Whether mail of the agent may be anywhere: at its relays, or at those that it left."""
    held = find_own_profile(home)
    return held is not None and bool(held.record.relays or held.record.left)
