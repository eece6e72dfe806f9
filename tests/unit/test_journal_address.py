"""Where a journal is: what people may write, and what it becomes."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

import holdfast
from holdfast.app.worker import Order
from holdfast.cli.input.input_journal import journal_of
from holdfast.cli.main import main
from holdfast.core.journal_address import JournalAddress, file_at, is_url, parse_journal_url
from holdfast.errors import BadInput
from holdfast.journal.bind import journal_at
from holdfast.layout.agent_home import load_home
from holdfast.layout.journal_location import journal_address, journal_in

URL = "postgresql://ada@db.example/agents"


@pytest.mark.parametrize(
    "text",
    [
        URL,
        "postgresql://",
        "postgresql:///agents?host=/run/postgresql",
        "postgresql://ada@one:5432,two:5433/agents?target_session_attrs=read-write&sslmode=verify-full",
        "postgresql://[::1]:5432/agents",
        "postgresql:///?service=ada",
        "postgresql://ada@db/agents?passfile=%2Fetc%2Fpg%20pass&schema=ada",
    ],
)
def test_urls_of_libpq_are_kept_as_they_are(text: str) -> None:
    assert parse_journal_url(text) == text
    assert parse_journal_url(text.replace("postgresql://", "postgres://")) == text


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("postgresql://ada:s3cret@db/agents", "password"),
        ("postgresql://ada:s3cret@one,two:5433/agents", "password"),
        ("postgresql://ada:s3%40cret@db/agents", "password"),
        ("postgresql://ada@db/agents?password=s3cret", "password"),
        ("postgresql://ada@db/agents?sslmode=require&PassWord=s3cret", "password"),
        ("postgresql://ada@db/agents?sslpassword=s3cret", "password"),
        ("postgresql://ada@db/agents?oauth_client_secret=s3cret", "password"),
        ("postgresql://ada@db/agents?scram_client_key=s3cret", "password"),
        ("postgresql://ada@db/agents?s3cret", "not valid"),
        ("postgresql://ada@[::1/s3cret", "not valid"),
        ("postgresql://ada@db/agents#s3cret", "#"),
        ("mysql://ada@db/s3cret", "mysql://"),
        ("postgresql://ada@db/s3cret\n", "printable"),
        ("postgresql://ada@db/s3cret é", "printable"),
        ("postgresql://ada@db/" + "s3cret" * 400, "at most"),
        ("postgresql://ada@db/agents?direct=ada:s3cret@db2:5432", "direct"),
        ("postgresql:/ada:s3cret@db/agents", "one slash"),
        ("postgres:ada:s3cret@db/agents", "one slash"),
        ("host=db dbname=agents password=s3cret", "libpq"),
        ("password = 's3cret' host = db", "libpq"),
    ],
)
def test_other_urls_are_refused_and_no_secret_is_repeated(text: str, word: str) -> None:
    with pytest.raises(BadInput) as met:
        journal_address(text)
    assert word in met.value.message
    assert "s3cret" not in f"{met.value.message} {met.value.hint}"


def test_a_connection_string_in_the_settings_is_not_repeated(tmp_path: Path) -> None:
    (tmp_path / "holdfast.toml").write_text('[journal]\nurl = "password=s3cret"\n')
    with pytest.raises(BadInput, match="libpq") as met:
        journal_in(tmp_path)
    assert "s3cret" not in f"{met.value.message} {met.value.hint}"
    assert journal_address(tmp_path / "user.db").file == "user.db"


def test_a_file_goes_with_its_folder_and_a_url_with_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert journal_address(tmp_path) == file_at(tmp_path / "journal.db") == journal_in(tmp_path)
    assert journal_address(str(tmp_path / "x.db")) == JournalAddress(folder=tmp_path, file="x.db")
    on_server = journal_address(URL, home=tmp_path)
    assert (on_server.folder, on_server.instance, on_server.name) == (tmp_path, tmp_path / "instance", URL)
    assert (str(on_server), str(file_at(tmp_path / "x.db"))) == (URL, str(tmp_path / "x.db"))
    assert journal_address(on_server) is on_server
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))
    assert journal_address(URL) == on_server
    with pytest.raises(BadInput):
        journal_address(tmp_path / "x.db", home=tmp_path)
    assert on_server.named("x.db") == file_at(tmp_path / "x.db")
    assert file_at(tmp_path / "x.db").named(URL) == on_server
    assert not is_url(str(tmp_path))


def test_settings_name_the_journal_of_a_folder(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    settings = tmp_path / "holdfast.toml"
    settings.write_text(f'agent = "ada"\n[journal]\nurl = "{URL}"\n')
    settings.chmod(0o600)
    assert load_home(tmp_path).journal == journal_in(tmp_path) == JournalAddress(folder=tmp_path, url=URL)
    settings.write_text('agent = "ada"\n[journal]\nurl = "postgresql://ada:s3cret@db/x"\n')
    with pytest.raises(BadInput, match="password"):
        journal_in(tmp_path)


def test_which_journal_a_command_means(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def meant(journal: str | None, home: Path | None) -> JournalAddress:
        return journal_of(argparse.Namespace(journal=journal, home=None if home is None else str(home)))

    assert meant(None, tmp_path) == file_at(tmp_path / "journal.db")
    assert meant(URL, tmp_path) == JournalAddress(folder=tmp_path, url=URL)
    with pytest.raises(BadInput):
        meant(str(tmp_path / "x.db"), tmp_path)
    monkeypatch.setenv("HOLDFAST_JOURNAL", URL)
    monkeypatch.chdir(tmp_path)
    assert meant(None, None) == JournalAddress(folder=tmp_path, url=URL)
    order = Order(app="a", journal=URL, home=str(tmp_path))
    assert order.address == JournalAddress(folder=tmp_path, url=URL)


async def test_without_the_driver_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> object:
        raise ModuleNotFoundError(f"No module named {name!r}", name="psycopg")

    monkeypatch.setattr("holdfast.journal.bind.importlib.import_module", missing)
    with pytest.raises(BadInput, match="driver is missing") as met:
        journal_at(JournalAddress(folder=tmp_path, url=URL))
    assert "holdfast[postgres]" in met.value.hint
    with pytest.raises(BadInput, match="driver is missing"):
        async with holdfast.open(URL, home=tmp_path):
            pass


def test_a_password_on_the_command_line_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["task", "list"], ["doctor"], ["submit", "app.py:tasks", "{}"], ["worker", "app.py:tasks"]):
        (tmp_path / "app.py").write_text("tasks = []\n")
        assert main([*words, "--journal", "postgresql://ada:s3cret@db/x", "--home", str(tmp_path)]) == 2
        said = capsys.readouterr()
        assert "s3cret" not in said.out + said.err
