"""Who speaks for the agent in a folder: its signer where it has one, else the operational key in its vault.

Of the vault: the log is read again for every act, and the key that its head names is looked up in the vault: a
rotation that another process made counts from the next act on, without a restart. The key itself
is unsealed for one signature and wiped. What is signed is read back and judged as a stranger
would judge it before it is handed out, so that a fault here becomes an error and not a bad record.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, Unpack

from holdfast.core.clock import Clock, SystemEntropy
from holdfast.errors import (
    BadInput,
    BadRecord,
    BadSettings,
    HoldfastError,
    KeysReplaced,
    NotNow,
    VaultDamaged,
    VaultMissing,
)
from holdfast.identity.files.own_log import read_own_log
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.records.ed25519 import Signatures, Sodium
from holdfast.identity.records.encodings import Digest, PublicKey, key_bytes
from holdfast.identity.records.fields import Body
from holdfast.identity.records.records import Keys
from holdfast.identity.records.secret_bytes import KeyPair
from holdfast.identity.records.signed import Family, Signed, sealed
from holdfast.identity.speaker.signer_client import SignerClient, SignerSpeaker
from holdfast.identity.speaker.speaker import HeadFacts, ProfileFacts, Speaker, head_fields
from holdfast.identity.statements import statements
from holdfast.identity.statements.certificate import LIFE_S_MAX, Certificate, Role, find_inactive, parse_certificate
from holdfast.identity.statements.roster import Enrolled, Roster, RosterView, next_rank, parse_roster
from holdfast.identity.statements.statements import ChallengeAnswer, Head, Profile
from holdfast.identity.vault.keyset import OP, get_op
from holdfast.identity.vault.mail_keys import MailKey, mail_keys_in, renewed_mail_keys
from holdfast.identity.vault.ring import read_escrow
from holdfast.identity.vault.vault import Vault, open_vault, terminal_prompt
from holdfast.layout.agent_home import AgentHome
from holdfast.layout.rescued import check_not_rescued

PROFILE_S_MAX = 366 * 86_400
B = TypeVar("B", bound=Body)

CERTIFICATE_S = 900  # what an instance asks for: 15 minutes of a stale primary at worst


class VaultSpeaker:
    """speaker.Speaker over an open vault. `read_log` gives the agent's own log, as it is now."""

    def __init__(
        self, vault: Vault, *, read_log: Callable[[], KeyLog], clock: Clock, port: Signatures | None = None
    ) -> None:
        self._vault = vault
        self._read_log = read_log
        self._clock = clock
        self._port = port or Sodium()
        self.id = read_log().id

    def log(self) -> KeyLog:
        return self._read_log()

    def certify(
        self, *, inst: PublicKey, role: Role, incarnation: int, host: Digest, life_s: int
    ) -> Signed[Certificate]:
        log, keys = self._speaking()
        if not 0 < life_s <= LIFE_S_MAX:
            raise BadInput(f"a certificate must be valid for 1 to {LIFE_S_MAX} seconds, not {life_s}")
        if inst in keys.members or not self._port.is_good_key(_key(inst)):
            raise BadInput(f"{inst} is not a valid key for an instance")
        now = self._now()
        record = Certificate(**_at(log), inst=inst, role=role, e=incarnation, iat=now, exp=now + life_s, host=host)
        return self._signed(record, Family.CERT, keys, parse_certificate)

    def answer(self, challenge: str, *, asker: str = "") -> Signed[ChallengeAnswer]:
        log, keys = self._speaking()
        record = ChallengeAnswer(**_at(log), chal=challenge, at=self._now(), to=asker)
        return self._signed(record, Family.ANSWER, keys, statements.parse_answer)

    def profile(self, **facts: Unpack[ProfileFacts]) -> Signed[Profile]:
        log, keys = self._speaking()
        life_s = facts["life_s"]
        if not 0 < life_s <= PROFILE_S_MAX:
            raise BadInput(f"a profile must be valid for 1 to {PROFILE_S_MAX} seconds, not {life_s}")
        lists: dict[str, Any] = {name: tuple(facts.get(name, ())) for name in ("relays", "handles", "enc", "left")}
        exp, policy = self._now() + life_s, tuple(sorted(facts.get("policy", ())))
        record = Profile(**_at(log), ver=facts["ver"], policy=policy, exp=exp, **lists)
        return self._signed(record, Family.PROF, keys, statements.parse_profile)

    def seal_head(self, **facts: Unpack[HeadFacts]) -> Signed[Head]:
        log, keys = self._speaking()
        record = Head(**_at(log), at=self._now(), **head_fields(facts))
        return self._signed(record, Family.HEAD, keys, statements.parse_head)

    def roster(self, view: RosterView, instances: Sequence[Enrolled]) -> Signed[Roster]:
        """The next version of the roster. No verb of a signer: a person enrols instances, with the vault open."""
        log, keys = self._speaking()
        record = Roster(**_at(log), ver=next_rank(view, log), instances=tuple(instances))
        return self._signed(record, Family.ROSTER, keys, parse_roster)

    def mail_keys(self) -> tuple[MailKey, ...]:
        try:
            return renewed_mail_keys(self._vault, SystemEntropy(), now=self._now())
        except VaultMissing:
            return ()
        except (HoldfastError, OSError):  # it cannot be written now: the keys that are held go on for two weeks
            return mail_keys_in(read_escrow(self._vault))

    def _speaking(self) -> tuple[KeyLog, Keys]:
        """The log and the operational keys that its head names. Raises NotNow."""
        log = self._read_log()
        silent = find_inactive(log)
        keys = log.operational
        if silent is not None or keys is None:
            why = "the key log names no valid operational key" if silent is None else silent.message
            raise NotNow(f"{log.id}: {why}", hint="run `holdfast identity show` to see why")
        return log, keys

    @contextmanager
    def _held(self, keys: Keys) -> Generator[Sequence[KeyPair]]:
        """As many of these keys as are needed, for one signature. Raises KeysReplaced."""
        self._vault.read(OP)  # a damaged file is not a replaced key
        found: list[KeyPair] = []
        try:
            for member in keys.members:
                if len(found) == keys.needed:
                    break
                try:
                    found.append(get_op(self._vault, key_bytes(member)))
                except VaultDamaged:
                    continue
            if len(found) < keys.needed:
                raise KeysReplaced(
                    f"the vault {self._vault.folder} has {len(found)} of the operational keys that the key log names; "
                    f"{keys.needed} are needed"
                )
            yield found
        finally:
            for key in found:
                key.wipe()

    def _signed(self, record: B, family: Family, keys: Keys, parse: Callable[[bytes], Signed[B]]) -> Signed[B]:
        with self._held(keys) as signers, _as_input():
            return parse(sealed(record, family, signers).line())

    def _now(self) -> int:
        return self._clock.wall_ms() // 1000


def _at(log: KeyLog) -> dict[str, Any]:  # Any: AtPosition's fields
    return {"id": log.id, "g": log.position.g, "s": log.position.s}


@contextmanager
def _as_input() -> Generator[None]:
    """A value that no reader would take was the caller's."""
    try:
        yield
    except BadRecord as error:
        raise BadInput(error.message) from error


def _key(text: str) -> bytes:
    with _as_input():
        return key_bytes(text)


def home_speaker(folder: Path, vault: Vault, clock: Clock, port: Signatures | None = None) -> VaultSpeaker:
    """The speaker over this open vault and the log in this folder."""
    port = port or Sodium()
    return VaultSpeaker(vault, read_log=lambda: read_own_log(folder, port), clock=clock, port=port)


def open_speaker(home: AgentHome, clock: Clock, *, ask: Callable[[], str] | None = None) -> Speaker:
    """The agent's speaker. With `[identity] signer` the vault is never touched; without, it is opened by the machine's
    own slots, else, at a terminal, by asking. Raises RescuedCopy."""
    check_not_rescued(home.folder)
    if home.signer is not None:
        return SignerSpeaker(SignerClient(home.signer))
    if home.vault is None:
        raise BadSettings(
            f"{home.settings_file} names neither a signer nor a vault",
            hint="run `holdfast init` to make an identity; see `holdfast explain settings`",
        )
    return home_speaker(home.folder, open_vault(home.vault, ask=ask or terminal_prompt()), clock)
