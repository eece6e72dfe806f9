"""Rows of the attack table about vault and paper: slots, age files, shares, misread sheets.

The table itself is in docs/formats/attack-table.md; its rows link to these names.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import time
from collections.abc import Generator
from itertools import combinations
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import pytest

from holdfast.cli.main import main
from holdfast.core.clock import SystemEntropy
from holdfast.errors import BadPhrase, BadShare, HoldfastError, VaultDamaged, VaultLocked
from holdfast.identity.log.drafts import committed
from holdfast.identity.paper.derive import PaperKeys
from holdfast.identity.paper.phrase import Phrase, english, read_phrase, repair
from holdfast.identity.paper.shares import combine, read_share, slip39_words, split
from holdfast.identity.records.encodings import key_digest
from holdfast.identity.surfaces import watch_log
from holdfast.identity.vault import age, slots
from holdfast.identity.vault.age import AgeIdentity, open_sealed, seal
from holdfast.identity.vault.keyset import create_vaults
from holdfast.identity.vault.slots import file_key, new_unlock_text, passphrase_key
from holdfast.identity.vault.vault import open_vault
from holdfast.identity.witness.observe import SigningPower
from holdfast.testing.clocks import SeededEntropy
from holdfast_proofs.support.agents import World
from holdfast_proofs.support.command_line import Commands

PASSPHRASE = "correct horse battery staple"
UNLOCK = new_unlock_text(SeededEntropy(1))
REFUSED_S_MAX = 1.0  # of this process's time: other work on the machine does not count


def vault_folder(folder: Path, phrase: Phrase) -> Path:
    """A vault with a slot of each kind that can be made anywhere."""
    create_vaults(
        folder / "vault",
        folder / "second",
        escrow=PaperKeys(phrase).escrow().recipient,
        keys=[passphrase_key(PASSPHRASE), file_key(Path("/gone"), UNLOCK)],
        second_keys=[file_key(Path("/second"), UNLOCK)],
        entropy=SystemEntropy(),
    )
    return folder / "vault"


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Generator[tuple[tuple[Any, ...], Any]]:
    """Every field below, with its path."""
    whole = cast("dict[Any, Any] | list[Any]", value)
    items = whole.items() if isinstance(whole, dict) else enumerate(whole)
    for name, inner in items:
        if isinstance(inner, dict | list):
            yield from leaves(inner, (*path, name))
        else:
            yield (*path, name), inner


def put(whole: Any, path: tuple[Any, ...], value: Any) -> Any:
    changed = json.loads(json.dumps(whole))
    inner = changed
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    return changed


def edited(value: Any) -> list[Any]:
    """Other values for a field: near ones, and such as nobody should work with."""
    if isinstance(value, int):
        return [value + 1, value - 1, 0, -1, 100 * 2**20, 2**63, str(value), None]
    turned = value[:-3] + ("AAAA" if value.endswith("AAA") else "AAA") if value else "/elsewhere"
    return [turned, value + "=", "", 7, None, ["x"]]


def test_row_21_every_edited_field_of_the_slots_is_refused_at_once(tmp_path: Path, phrase: Phrase) -> None:
    """Edits that ask for other work never reach Argon2id; the rest open nothing."""
    folder = vault_folder(tmp_path, phrase)
    file = folder / "slots.json"
    whole = json.loads(file.read_text())
    passphrase_slot = next(at for at, one in enumerate(whole["slots"]) if one["kind"] == "passphrase")
    count = 0
    for path, value in leaves(whole):
        if path[0] == "slots" and path[1] != passphrase_slot:
            continue
        for other in (one for one in edited(value) if one != value):
            file.write_text(json.dumps(put(whole, path, other)))
            began = time.process_time()
            with pytest.raises((VaultDamaged, VaultLocked)):
                open_vault(folder, ask=lambda: PASSPHRASE)
            assert time.process_time() - began < REFUSED_S_MAX, (path, other)
            count += 1
    assert count > 60
    file.write_text(json.dumps(whole))
    assert open_vault(folder, ask=lambda: PASSPHRASE).read("op")


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("passes", 2, "too weak"),
        ("memory_kib", 65_535, "too weak"),
        ("lanes", 0, "too weak"),
        ("passes", 13, "too expensive"),
        ("memory_kib", 100 * 2**20, "too expensive"),
        ("lanes", 17, "too expensive"),
    ],
)
def test_row_21_other_work_is_refused_before_any_is_done(
    tmp_path: Path, phrase: Phrase, field: str, value: int, said: str
) -> None:
    folder = vault_folder(tmp_path, phrase)
    file = folder / "slots.json"
    whole = json.loads(file.read_text())
    file.write_text(json.dumps(put(whole, ("slots", 0, "work", field), value)))
    with (
        patch.object(slots, "Argon2id", side_effect=AssertionError("work was done")),
        pytest.raises(VaultDamaged, match=said),
    ):
        open_vault(folder, ask=lambda: PASSPHRASE)


@pytest.mark.parametrize("log_n", [1, 19, 23, 30, 64])
def test_row_22_a_hostile_passphrase_file_never_reaches_the_library(log_n: int) -> None:
    """A file that asks scrypt for 2^log_n: read by us, refused by us, and nothing was computed."""
    identity = AgeIdentity.new(SeededEntropy(3))
    good = seal(b"secret", [identity.recipient])
    salt = base64.b64encode(bytes(16)).rstrip(b"=")
    body = base64.b64encode(bytes(32)).rstrip(b"=")
    mac = good[good.index(b"\n--- ") + 1 :]
    hostile = b"age-encryption.org/v1\n-> scrypt " + salt + b" %d\n" % log_n + body + b"\n" + mac
    text = base64.b64encode(hostile).decode()
    lines = [text[at : at + 64] for at in range(0, len(text), 64)]
    begin, end = (f"-----{word} AGE ENCRYPTED FILE-----" for word in ("BEGIN", "END"))
    armoured = "\n".join([begin, *lines, end, ""]).encode()
    for raw in (hostile, armoured):
        began = time.process_time()
        with (
            patch.object(age, "_pyrage", side_effect=AssertionError("the library was asked")),
            pytest.raises(VaultDamaged, match="kind scrypt"),
        ):
            open_sealed(raw, identity)
        assert time.process_time() - began < REFUSED_S_MAX
    assert open_sealed(good, identity) == b"secret"


def share_bits(words: tuple[str, ...]) -> str:
    """The value of a share, without its header and its checksum."""
    numbers = [slip39_words().find(word) for word in words]
    return "".join(f"{number:010b}" for number in numbers if number is not None)[40:-30]


def test_row_25_one_share_alone_tells_nothing(phrase: Phrase) -> None:
    for share in split(phrase, needed=2, total=3):
        with pytest.raises(BadShare, match="2 different shares are needed; you gave 1"):
            combine([" ".join(share.words)])
        with pytest.raises(BadShare, match="you gave 1"):
            combine([" ".join(share.words)] * 3)
    # No bit of a share depends on the secret: for the two most different ones each takes both
    # values, at every place but the four that pad the first word.
    for secret in (bytes(32), b"\xff" * 32):
        seen = [share_bits(split(Phrase(secret), needed=2, total=3)[0].words) for _ in range(24)]
        both = [{one[at] for one in seen} == {"0", "1"} for at in range(len(seen[0]))]
        assert sum(both) >= len(both) - 4 - 1
        assert len(set(seen)) == len(seen)


def test_row_25_a_recovery_by_a_stolen_paper_alarms_the_owner(tmp_path: Path) -> None:
    """The thief recovers on a machine of his own; the owner's doctor sees it at the witness."""
    owner = World(tmp_path)
    owner.make()
    assert asyncio.run(watch_log(owner.home())).strange == ()
    hf = Commands(owner.folder, main)
    assert "not made here" not in hf("doctor", code=1).out  # the paper was not read back yet
    thief = World(tmp_path, home_name="elsewhere")
    thief.recover(owner.words[0], witnesses=owner.witnesses)
    strange = asyncio.run(watch_log(owner.home())).strange
    assert [(one.power, one.stands) for one in strange] == [(SigningPower.PAPER, True), (SigningPower.NEXT, True)]
    said = hf("doctor", code=6).out
    assert "a recovery at generation 1, rotation 0 was not made here" in said
    assert "someone else has the recovery words" in said
    assert said.split("identity  ", 1)[1].count("stop this copy") == 1  # two records, one fix


def test_row_26_one_mistake_is_found_and_no_wrong_identity_is_ever_taken(phrase: Phrase) -> None:
    """The digest in the log decides, not the checksum of 8 bits."""
    rec = committed((PaperKeys(phrase).recovery(1).public,))

    def is_the_one(found: Phrase) -> bool:
        return key_digest(PaperKeys(found).recovery(1).public) in rec.members

    words, listed = list(phrase.words), english().words
    chance = random.Random(26)
    changed = [*words[:23], listed[0] if words[23] != listed[0] else listed[1]]
    swapped = [*words]
    swapped[0], swapped[17] = words[17], words[0]
    for text in (changed, swapped, words[:1] + words[2:], [word[:4].upper() for word in words]):
        assert repair(" ".join(text), is_the_one).phrase == phrase
    for _ in range(2):
        first, second = chance.sample(range(24), 2)
        twice = [*words]
        for place in (first, second):
            twice[place] = chance.choice([word for word in listed if word != words[place]])
        with pytest.raises(BadPhrase):
            repair(" ".join(twice), is_the_one)


def test_row_26_shares_of_another_set_are_named_and_each_pair_recovers(phrase: Phrase) -> None:
    ours, theirs = split(phrase, needed=2, total=3), split(phrase, needed=2, total=3)
    for pair in combinations(ours, 2):
        assert combine([" ".join(one.words) for one in pair]) == phrase
    with pytest.raises(BadShare, match="does not belong to the same set") as caught:
        combine([" ".join(ours[0].words), " ".join(theirs[1].words)])
    assert ours[0].document in str(caught.value)
    words = list(ours[0].words)
    for place in range(0, len(words), 4):
        wrong = [*words]
        wrong[place] = "zero" if words[place] != "zero" else "yoga"
        with pytest.raises(BadShare):
            read_share(" ".join(wrong))


def test_row_26_a_typed_text_is_taken_or_refused_never_guessed(phrase: Phrase) -> None:
    words = list(phrase.words)
    for place in range(24):
        wrong = [*words]
        wrong[place] = "qqqq"
        with pytest.raises(BadPhrase, match=f"word {place + 1} is not in the word list") as caught:
            read_phrase(" ".join(wrong))
        assert isinstance(caught.value, HoldfastError)
