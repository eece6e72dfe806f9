"""A person's signature under a report, made and checked by ssh-keygen: the tested agent is not the only witness."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path

from msgspec.structs import replace

from holdfast.drills.document.export import html, markdown
from holdfast.errors import BadInput, ReportInvalid
from holdfast.host.private_files import write_atomically
from holdfast.surfaces.report import SealedReport, SignOff, file_bytes, parse_report, read_report, signoff_message

NAMESPACE = "holdfast"
SIGN_S_MAX = 600.0  # a person may type a passphrase, or touch a key
TEXT_CHARS_MAX = 200
SIGNATURES_MAX = 20


def sign_report(found: SealedReport, *, key: Path, name: str, role: str, time: str) -> SealedReport:
    """Add a signature to the report's file, and write its pages again."""
    for what, text in (("--name", name), ("--role", role)):
        if not text or len(text) > TEXT_CHARS_MAX or not text.isprintable():
            raise BadInput(f"{what}: give 1 to {TEXT_CHARS_MAX} characters")
    if len(found.file.signoff) >= SIGNATURES_MAX:
        raise BadInput(f"{found.path} has {SIGNATURES_MAX} signatures already")
    message = signoff_message(found.seal, role=role, name=name, time=time)
    signature = _ssh_keygen("sign", "-f", str(key), message=message)
    made = SignOff(role=role, name=name, key_id="", time=time, signature=signature)
    made = replace(made, key_id=check_signoff(found, made))
    there = read_report(found.path)  # another person may have signed while this one typed a passphrase
    if there.seal.digest != found.seal.digest:
        raise ReportInvalid(f"{found.path} was replaced meanwhile")
    file = replace(there.file, signoff=(*there.file.signoff, made))
    signed = parse_report(file_bytes(file), found.path)
    write_atomically(found.path, file_bytes(file))
    write_pages(signed)
    return signed


def check_signoff(found: SealedReport, one: SignOff, *, allowed: Path | None = None) -> str:
    """The fingerprint of the key that made this signature. With `allowed`, a file of allowed signers, the key must be
    the named person's. Raises ReportInvalid."""
    message = signoff_message(found.seal, role=one.role, name=one.name, time=one.time)
    with tempfile.NamedTemporaryFile("w", suffix=".sig") as file:
        file.write(one.signature)
        file.flush()
        if allowed is None:
            said = _ssh_keygen("check-novalidate", "-s", file.name, message=message)
        else:
            said = _ssh_keygen("verify", "-f", str(allowed), "-I", one.name, "-s", file.name, message=message)
    key_id = re.search(r"SHA256:[A-Za-z0-9+/]+", said)
    if key_id is None or (one.key_id and key_id[0] != one.key_id):
        raise ReportInvalid(f"{found.path}: the signature of {one.name} is of another key")
    return key_id[0]


def write_pages(found: SealedReport) -> None:
    write_atomically(found.path.with_suffix(".md"), markdown(found).encode())
    write_atomically(found.path.with_suffix(".html"), html(found).encode())


def _ssh_keygen(what: str, *options: str, message: bytes) -> str:
    words = ["ssh-keygen", "-Y", what, "-n", NAMESPACE, *options]
    try:
        done = subprocess.run(words, input=message, capture_output=True, timeout=SIGN_S_MAX, check=False)
    except FileNotFoundError:
        raise BadInput("ssh-keygen is not installed", hint="install OpenSSH") from None
    if done.returncode != 0:
        said = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()
        text = f"ssh-keygen -Y {what}: {said[-1] if said else 'it failed'}"
        raise BadInput(text) if what == "sign" else ReportInvalid(text)
    return done.stdout.decode()
