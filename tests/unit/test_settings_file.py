"""holdfast.toml: what is known is taken, what is not is refused with a suggestion."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.core.journal_address import file_at
from holdfast.errors import BadSettings, HoldfastError
from holdfast.layout.settings import find_settings, make_settings, read_fields, write_journal_url


def write(folder: Path, text: str) -> Path:
    path = folder / "holdfast.toml"
    path.write_text(text)
    path.chmod(0o644)
    return path


def test_the_file_beside_the_journal_and_options_on_top(tmp_path: Path) -> None:
    write(tmp_path, 'agent = "ada"\n[worker]\nconcurrency = 7\nlease_ttl_s = 4\n')
    settings = find_settings(file_at(tmp_path / "journal.db"), overrides={"concurrency": 9})
    assert (settings.agent, settings.concurrency, settings.lease_ttl_s) == ("ada", 9, 4.0)
    assert settings.renew_every_s < 4 / 3


def test_without_a_file_the_defaults_hold(tmp_path: Path) -> None:
    assert find_settings(file_at(tmp_path / "journal.db")) == make_settings({})


@pytest.mark.parametrize("lease_ttl_s", [0.01, 0.5, 2.0, 10.0, 600.0])
def test_a_lease_is_renewed_at_least_three_times(lease_ttl_s: float) -> None:
    settings = make_settings({"lease_ttl_s": lease_ttl_s})
    assert 3 * settings.renew_every_s <= lease_ttl_s
    assert settings.renew_every_s <= 3.0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[worker]\nconcurency = 1", "did you mean concurrency?"),
        ("[wroker]\n", "did you mean worker?"),
        ("agnet = 'x'", "did you mean agent?"),
        ("[worker.more]\nx = 1", "[worker] more"),
        ("[worker]\npace = 0.1", "the settings here are:"),
        ("[worker]\nconcurrency = 1.5", "a whole number"),
        ("[worker]\nconcurrency = true", "a whole number"),
        ("[worker]\nconcurrency = '3'", "a whole number"),
        ("[worker]\ncheck_after_crash = 1", "true or false"),
        ("[worker]\nlease_ttl_s = nan", "lease_ttl_s must be between"),
        ("[worker]\nlease_ttl_s = 5\nrenew_every_s = 5", "shorter than"),
        ("[worker]\ngrace_s = -1", "grace_s"),
        ("[notices]\ncommand = 'rm'", "a list of words"),
        ("[notices]\ncommand = []", "a list of words"),
        ("[notices]\ncommand = ['a', 1]", "a list of words"),
        ('agent = "a\\u0000b"', "control characters"),
        ("agent = 1", "text"),
        ("[worker\n", "not valid TOML"),
        ("x = " + "[" * 5_000, "not valid TOML"),
        ("agent = 'a'\nagent = 'b'", "not valid TOML"),
        (f"agent = '{'a' * 201}'", "agent must have at most 200 characters"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(BadSettings) as caught:
        find_settings(file_at(tmp_path / "journal.db"))
    assert said in f"{caught.value.message} {caught.value.hint}"
    assert str(path) in caught.value.message or "must" in caught.value.message


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "").write_bytes(b"agent = '\xff'")
    with pytest.raises(BadSettings):
        find_settings(file_at(tmp_path / "journal.db"))


def test_a_file_that_others_could_change_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "")
    path.chmod(0o664)
    with pytest.raises(HoldfastError) as caught:
        read_fields(path)
    assert (caught.value.code, "chmod go-w" in caught.value.hint) == ("mode-too-wide", True)


def test_a_named_file_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match="there is no settings file"):
        find_settings(file_at(tmp_path / "journal.db"), config=str(tmp_path / "other.toml"))
    with pytest.raises(HoldfastError):
        find_settings(file_at(tmp_path / "journal.db"), config=str(tmp_path))


@pytest.mark.parametrize(
    "text",
    [
        "",
        'agent = "ada"\n\n[worker]\nconcurrency = 3',
        "# mine\n[journal]\nallow_network_fs = true  # yes\n\n[worker]\nconcurrency = 3\n",
        "[journal]",
        '[journal]\nurl = "postgresql://other/b"\n# kept\n',
    ],
)
def test_the_url_of_the_journal_is_set_and_removed_and_nothing_else(tmp_path: Path, text: str) -> None:
    path, url = tmp_path / "holdfast.toml", "postgresql://ada@db/agents?schema=ada"
    path.write_text(text)
    path.chmod(0o600)
    others = {name: value for name, value in read_fields(path).items() if name != "journal_url"}
    write_journal_url(path, url)
    assert read_fields(path) == {**others, "journal_url": url}
    write_journal_url(path, "")
    assert read_fields(path) == others
    for line in text.splitlines():
        assert line in path.read_text() or line.startswith("url")


def test_a_url_that_cannot_be_changed_alone_is_left_to_the_person(tmp_path: Path) -> None:
    path = tmp_path / "holdfast.toml"
    path.write_text('journal = { url = "postgresql://a/b" }\n')
    path.chmod(0o600)
    with pytest.raises(BadSettings) as refused:
        write_journal_url(path, "postgresql://c/d")
    assert "postgresql://c/d" in str(refused.value.hint)
    assert "postgresql://a/b" in path.read_text()
