"""`holdfast paper`: printed by a pipe, read back from paper, registered; never on a disk."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from homes import Home, with_relays

from holdfast.backup.places.address import PlaceKind
from holdfast.backup.places.places import Place, write_places
from holdfast.cli.main import main
from holdfast.errors import BadSheet, ModeTooWide
from holdfast.host.private_files import is_in_memory
from holdfast.identity.acts.paper_sheets import fit_phrase, make_card, mark_verified, print_sheets, today
from holdfast.identity.paper.pages import card_text, sheet_pdf
from holdfast.identity.paper.paper import read_card, read_secret
from holdfast.identity.paper.phrase import Phrase, new_phrase
from holdfast.identity.paper.scan import scan
from holdfast.identity.paper.sheets import state_of
from holdfast.identity.records.records import parse_record
from holdfast.testing.clocks import SeededEntropy
from holdfast_proofs.support.command_line import Commands, Done, command_line, environment
from holdfast_proofs.support.scanner import rendered, scanned
from holdfast_proofs.support.warm_start import run_command, run_command_raw


@pytest.fixture
def home(tmp_path: Path, phrase: Phrase) -> Home:
    return Home(tmp_path / "home", phrase)


@pytest.fixture
def hf(home: Home) -> Commands:
    return Commands(home.folder, main)


def words_of(phrase: Phrase) -> str:
    return " ".join(phrase.words)


def raw(home: Home, *words: str, stdin: bytes = b"", code: int = 0) -> bytes:
    done = run_command_raw(("paper", *words), cwd=home.folder, env=environment(home.folder), input=stdin)
    assert done.returncode == code, done.stderr
    return done.stdout


def leaked(phrase: Phrase, said: str) -> list[str]:
    pairs = zip(phrase.words, phrase.words[1:], strict=False)
    return [f"{a} {b}" for a, b in pairs if f"{a} {b}" in said.lower()]


def states(home: Home) -> list[str]:
    return [state_of(one, today()).value for one in home.session().register.sheets]


def test_a_sheet_is_printed_by_a_pipe_scanned_back_and_registered(
    home: Home, hf: Commands, phrase: Phrase, tmp_path: Path
) -> None:
    """PDF, then image, then code, then words, then key: its digest is the one in the log."""
    pdf = raw(home, "print", "--words-fd", "0", stdin=words_of(phrase).encode())
    assert states(home) == ["not verified"]
    image = tmp_path / "scan.png"
    page = rendered(pdf, dpi=150)
    page.save(image)
    assert read_secret(scanned(page)).phrase == phrase
    said = hf("paper", "verify", "--scan", str(image), "--json").json
    assert (said["sheets"], said["generation"], said["mended"]) == ([1], 1, "")
    (tmp_path / "page.pdf").write_bytes(pdf)
    assert read_secret(scan(tmp_path / "page.pdf")).phrase == phrase
    hf("paper", "verify", "--words-fd", "0", stdin=scanned(page))
    assert states(home) == ["verified"]
    rendered(pdf, dpi=20).save(image)
    assert "no QR code found" in hf("paper", "verify", "--scan", str(image), code=2).err


def test_typed_words_with_one_mistake_are_mended_and_two_refused(home: Home, hf: Commands, phrase: Phrase) -> None:
    print_sheets(home.session(), phrase, date=today())
    one = ["zoo", *phrase.words[1:]]
    said = hf("paper", "verify", "--words-fd", "0", "--json", stdin=" ".join(one))
    assert said.json["mended"] == "word 1 was wrong"
    two = ["zoo", "zoo", *phrase.words[2:]]
    refused = hf("paper", "verify", "--words-fd", "0", stdin=" ".join(two), code=2)
    assert not leaked(phrase, refused.err)
    stranger = words_of(new_phrase(SeededEntropy(99)))
    hf("paper", "print", "--text", "--words-fd", "0", stdin=stranger, code=2)
    assert len(states(home)) == 1


def test_shares_are_printed_and_enough_of_them_verify(home: Home, hf: Commands, phrase: Phrase) -> None:
    made = hf(
        "paper",
        "print",
        "--text",
        "--shares",
        "2of3",
        "--holder",
        "Grace",
        "--holder",
        "Alan",
        "--words-fd",
        "0",
        stdin=words_of(phrase),
    )
    pages = made.out.split("\f")
    assert ["for Grace" in page for page in pages] == [True, False, False]
    shares = [read_secret(page).share for page in pages]
    texts = [" ".join(one.words) for one in shares if one is not None]
    hf("paper", "verify", "--words-fd", "0", stdin=texts[0], code=2)
    assert states(home) == ["not verified"] * 3
    hf("paper", "verify", "--words-fd", "0", stdin="\n".join(texts[::2]))
    assert states(home) == ["verified", "not verified", "verified"]
    codes = "\n".join(re.findall(r"^HF1S:.*$", made.out, re.M)[1:])
    hf("paper", "verify", "--words-fd", "0", stdin=codes)
    assert hf("paper", "list", "--json").json["fresh"] is True
    pdf = sheet_pdf(*print_sheets(home.session(), phrase, date=today(), parts=(2, 3)))
    assert pdf.count(b"/Type /Page\n") == 3
    documents = [one.document for one in home.session().register.sheets]
    assert documents[0] != documents[3]


def test_nothing_secret_is_written_to_a_disk(home: Home, hf: Commands, phrase: Phrase, tmp_path: Path) -> None:
    with (tmp_path / "out.pdf").open("wb") as file:
        os.fchmod(file.fileno(), 0o600)
        done = subprocess.run(
            command_line("paper", "print", "--words-fd", "0"),
            cwd=home.folder,
            stdout=file,
            env=environment(home.folder),
            input=words_of(phrase).encode(),
            stderr=subprocess.PIPE,
            check=False,
        )
    memory = is_in_memory(tmp_path)
    assert done.returncode == (0 if memory else 2)
    if not memory:
        assert b"a file on a disk" in done.stderr
        hf("paper", "print", "--out", str(tmp_path / "x"), "--words-fd", "0", code=2)
        assert not (tmp_path / "x").exists()
        assert states(home) == []  # refused before a number was taken
    there = Path("/dev/shm")
    if not is_in_memory(there) or not os.access(there, os.W_OK):
        pytest.skip("no memory is mounted here")
    file = there / f"holdfast-test-{os.getpid()}"
    try:
        hf("paper", "print", "--text", "--out", str(file), "--words-fd", "0", stdin=words_of(phrase))
        assert file.stat().st_mode & 0o777 == 0o600
        assert read_secret(file.read_text()).phrase == phrase
        hf("paper", "print", "--out", str(file), "--words-fd", "0", code=2)
    finally:
        file.unlink(missing_ok=True)


def test_words_in_the_command_line_are_refused_and_not_repeated(hf: Commands, phrase: Phrase) -> None:
    said = hf("paper", "verify", *phrase.words, code=2).err
    assert "Never put a secret on the command line" in said
    assert not leaked(phrase, said)


def test_a_paper_outlives_its_recovery_and_says_when_it_was_replaced(home: Home, phrase: Phrase) -> None:
    """The same words fit generation g+1; other words, and the old ones are told so."""
    home.recover()
    assert fit_phrase(home.session(), words_of(phrase)).phrase == phrase
    assert home.session().generation == 2
    successor = new_phrase(SeededEntropy(7))
    home.recover(successor)
    assert fit_phrase(home.session(), words_of(successor)).phrase == successor
    with pytest.raises(BadSheet, match="no longer valid: the recovery of generation 2"):
        fit_phrase(home.session(), words_of(phrase))


def test_a_sheet_of_another_agent_is_named(home: Home, hf: Commands, tmp_path: Path, phrase: Phrase) -> None:
    other = Home(tmp_path / "other", new_phrase(SeededEntropy(5)))
    sheet = print_sheets(other.session(), other.phrase, date="2026-11-15")[0]
    said = hf("paper", "verify", "--words-fd", "0", stdin=sheet.code, code=2)
    assert f"belongs to agent {other.log.id[:8]}..." in said.err


def test_sheets_are_listed_stale_and_revoked(home: Home, hf: Commands, phrase: Phrase) -> None:
    session = home.session()
    for _ in range(2):
        print_sheets(session, phrase, date="2020-01-01")
    mark_verified(session, [1], date="2020-01-01")
    assert states(home) == ["stale", "not verified"]
    said = hf("paper", "verify", "--words-fd", "0", stdin=words_of(phrase))
    assert said.out.startswith("sheet 2: correct")  # the newest, and it says so
    assert "name it with --sheet" in said.err
    assert states(home) == ["stale", "verified"]
    hf("paper", "revoke", "1", code=2)  # nobody confirms
    done = hf("paper", "revoke", "1", "--yes")
    assert done.out == "revoked: 1\n"
    assert "stay valid" in done.err
    said = hf("paper", "verify", "--sheet", "1", "--words-fd", "0", stdin=words_of(phrase), code=2)
    assert "was revoked" in said.err
    hf("paper", "revoke", "9", "--yes", code=2)
    table = hf("paper", "list").out
    assert [line.split()[1] for line in table.splitlines()[1:]] == ["revoked", "verified"]


def test_the_card_holds_the_signed_records_and_where_to_look(home: Home, hf: Commands, phrase: Phrase) -> None:
    with_relays(home.folder, "https://relay.example.org")
    usb = Place(
        name="usb", kind=PlaceKind.FOLDER, address="/mnt/usb", place_id="1", repository_id="2", agent="ada", added_ms=1
    )
    write_places(home.folder / "places.json", [usb])
    text = hf("paper", "card", "--text", "--contact", "keeper@example.org").out
    records = [parse_record(line) for line in read_card(text)]
    assert [one.digest for one in records] == [home.log.generations[0].tier.digest]
    for shown in ("https://relay.example.org", "usb (/mnt/usb)", "keeper@example.org", "m/7233'"):
        assert shown in text
    sheet = hf("paper", "print", "--text", "--words-fd", "0", stdin=words_of(phrase)).out
    assert "Backups: usb (/mnt/usb)" in sheet
    signed = home.recover()
    card = make_card(home.session(), date=today())
    records = [parse_record(line) for line in read_card(card_text(card))]
    assert records[1].digest == signed.digest
    page = rendered(raw(home, "card"), dpi=150)
    assert read_card(scanned(page)) == tuple(one.line() for one in records)


def test_words_with_a_passphrase_need_it(tmp_path: Path, phrase: Phrase) -> None:
    home = Home(tmp_path / "home", phrase, passphrase="in the other safe")
    done = _with_fds(home, ["print", "--text"], words_of(phrase), "in the other safe\n")
    assert done.code == 0, done.err
    assert "Passphrase: yes, kept at" in done.out
    assert "other safe" not in done.out + done.err
    assert _with_fds(home, ["verify"], words_of(phrase), "another one").code == 2
    assert _with_fds(home, ["verify"], words_of(phrase), "in the other safe").code == 0


def _with_fds(home: Home, words: list[str], phrase: str, passphrase: str) -> Done:
    ends = [os.pipe(), os.pipe()]
    for (_, write), text in zip(ends, (phrase, passphrase), strict=True):
        os.write(write, text.encode())
        os.close(write)
    reads = [read for read, _ in ends]
    done = run_command(
        ("paper", *words, "--words-fd", str(reads[0]), "--sheet-passphrase-fd", str(reads[1])),
        cwd=home.folder,
        env=environment(home.folder),
        pass_fds=reads,
    )
    for read in reads:
        os.close(read)
    return Done(done.returncode, done.stdout, done.stderr)


class Terminal:
    """A command at a terminal of its own, answered as a person would."""

    def __init__(self, folder: Path, *words: str) -> None:
        self._ours, theirs = pty.openpty()
        self.seen = ""
        self.process = subprocess.Popen(
            command_line(*words),
            cwd=folder,
            env=environment(folder),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)

    def wait(self, pattern: str) -> re.Match[str]:
        """What matches behind everything that was matched before."""
        buffer = io.StringIO()
        while True:
            found = re.search(pattern, buffer.getvalue(), re.S)
            if found:
                return found
            try:
                part = os.read(self._ours, 4096).decode()
            except OSError:
                raise AssertionError(f"ended before {pattern!r}: {self.seen}") from None
            self.seen += part
            buffer.write(part)

    def answer(self, text: str) -> None:
        os.write(self._ours, text.encode() + b"\n")

    def close(self) -> int:
        code = self.process.wait(30)
        os.close(self._ours)
        return code


def test_words_are_copied_by_hand_and_asked_back(home: Home, hf: Commands, phrase: Phrase, tmp_path: Path) -> None:
    person = Terminal(home.folder, "paper", "print", "--hand-copy")
    person.wait(r"\(not shown\): $")
    person.answer(words_of(phrase))
    copied: list[str] = []
    for number in range(1, 25):
        found = person.wait(rf"word {number} of 24: (\w+)   \[Enter\] $")
        copied.append(found[1])
        person.answer("")
    assert tuple(copied) == phrase.words
    asked: list[int] = []
    for at in range(5):  # one of the four is wrong: that one is asked again, and no other
        asked.append(int(person.wait(r"word (\d+) \(not shown\): $")[1]))
        person.answer("zoo" if at == 0 else copied[asked[-1] - 1][:4])
    assert asked[4] == asked[0]
    person.wait(r"(?s)all 24 words.*: $")
    person.answer(" ".join([*copied[:6], "zoo", *copied[7:]]))
    person.wait(r"word 7 \(not shown\): $")
    person.answer(copied[6])
    person.wait(r"copied and checked")
    assert person.close() == 0
    assert "your copy differs in word" in person.seen
    assert states(home) == ["verified"]


def test_a_wide_home_is_refused_at_start(home: Home, hf: Commands) -> None:
    for path in (home.folder, home.folder / "identity.json", home.folder / "kel.jsonl"):
        kept = path.stat().st_mode
        path.chmod(kept | 0o044)
        with pytest.raises(ModeTooWide):
            home.session()
        path.chmod(kept)
    home.folder.chmod(0o755)
    assert "mode" in hf("paper", "list", code=7).err
