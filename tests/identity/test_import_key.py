"""A key that existed before: OpenSSH or a seed, from a private file; everything else is refused."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import BadKeyFile, ModeTooWide, SymlinkRefused
from holdfast.identity.vault.import_key import read_key_file
from holdfast_proofs.support.agents import World

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(7, 39)))
PUBLIC = KEY.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
OPENSSH = KEY.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())


def kept(folder: Path, raw: bytes) -> Path:
    path = folder / "key"
    path.touch(0o600)
    path.write_bytes(raw)
    return path


@pytest.mark.parametrize(
    ("raw", "kind"),
    [(OPENSSH, "openssh"), (bytes(range(7, 39)), "seed"), (bytes(range(7, 39)) + PUBLIC, "seed")],
    ids=["openssh", "seed", "seed and public half"],
)
def test_a_key_is_read(tmp_path: Path, raw: bytes, kind: str) -> None:
    found = read_key_file(kept(tmp_path, raw))
    assert (found.key.public_bytes, found.kind) == (PUBLIC, kind)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"x" * 32,
        bytes(32),
        bytes(range(31)),
        bytes(range(64)),
        bytes(range(32)).hex().encode(),
        OPENSSH[:-60],
        OPENSSH.replace(b"A", b"B", 4),
        OPENSSH + OPENSSH[:50] * 1_000,
        generate_private_key(SECP256R1()).private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()),
        KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        b"-----BEGIN OPENSSH PRIVATE KEY-----\n" + base64.b64encode(b"openssh-key-v1\0" * 40),
    ],
    ids=lambda raw: f"{len(raw)} bytes",
)
def test_everything_else_is_refused(tmp_path: Path, raw: bytes) -> None:
    with pytest.raises(BadKeyFile):
        read_key_file(kept(tmp_path, raw))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_changed_openssh_key_is_refused_or_is_another_whole_key(data: st.DataObject) -> None:
    import tempfile

    raw = bytearray(OPENSSH)
    place = data.draw(st.integers(0, len(raw) - 1))
    raw[place] = data.draw(st.integers(0, 255).filter(lambda byte: byte != raw[place]))
    with tempfile.TemporaryDirectory() as folder:
        try:
            found = read_key_file(kept(Path(folder), bytes(raw)))
        except BadKeyFile:
            return
        assert found.key.signs_for(found.key.public_bytes)


def test_a_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = kept(tmp_path, OPENSSH)
    path.chmod(0o640)
    with pytest.raises(ModeTooWide):
        read_key_file(path)
    path.chmod(0o600)
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(SymlinkRefused):
        read_key_file(tmp_path / "link")
    with pytest.raises(BadKeyFile):
        read_key_file(tmp_path / "nothing")


def test_an_encrypted_key_asks_and_says_what_to_do(tmp_path: Path) -> None:
    import shutil
    import subprocess

    if shutil.which("ssh-keygen") is None:
        pytest.skip("there is no ssh-keygen here")
    path = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "a passphrase", "-f", str(path)], check=True)
    with pytest.raises(BadKeyFile, match="encrypted"):
        read_key_file(path)
    hint = ""
    try:
        kind = read_key_file(path, lambda: "a passphrase").kind
    except BadKeyFile as error:  # the package that opens it is not installed
        kind, hint = "", error.hint
    assert kind == "openssh" or "ssh-keygen -p" in hint
    with pytest.raises(BadKeyFile):
        read_key_file(path, lambda: "another one")


def test_the_imported_key_speaks_until_the_first_rotation(tmp_path: Path) -> None:
    from holdfast.identity.files.public_file import read_identity

    tmp_path.chmod(0o700)
    world = World(tmp_path / "world")
    world.root.mkdir(0o700)
    world.make(read_key_file(kept(tmp_path, OPENSSH)))
    shown = read_identity(world.folder / "identity.json")
    assert shown.imported is not None
    log = world.log()
    assert log.operational is not None
    assert log.operational.members == (shown.imported.key,)
    world.rotate()
    assert read_identity(world.folder / "identity.json").imported is None
