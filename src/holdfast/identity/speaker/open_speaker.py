"""Who speaks for the agent in a folder: its signer where it has one, else its vault."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.core.clock import Clock
from holdfast.errors import BadSettings
from holdfast.identity.speaker.signer_client import SignerClient, SignerSpeaker
from holdfast.identity.speaker.speaker import Speaker
from holdfast.identity.speaker.vault_speaker import home_speaker
from holdfast.identity.vault.vault import open_vault, terminal_prompt
from holdfast.layout.agent_home import AgentHome


def open_speaker(home: AgentHome, clock: Clock, *, ask: Callable[[], str] | None = None) -> Speaker:
    """The agent's speaker. Where `[identity] signer` is set the vault is never touched.

    Without a signer the vault is opened by the machine's own slots; else, at a terminal, by asking.
    """
    if home.signer is not None:
        return SignerSpeaker(SignerClient(home.signer))
    if home.vault is None:
        raise BadSettings(
            f"{home.settings_file} names neither a signer nor a vault",
            hint="`holdfast init` makes an identity; see docs/reference/settings.md",
        )
    return home_speaker(home.folder, open_vault(home.vault, ask=ask or terminal_prompt()), clock)
