"""`drill run --on ssh://...`: the quarterly test and a test restore on another machine. Needs root.

    python -m holdfast_proofs.far_drill

The other machine is a network namespace with an ssh server of its own, reached over a link, and a mount namespace in
which nothing of ours is left: the project, its environment, the agent, its places, root's home and temporary files are
hidden. It has Debian's Python. There the agent is restored from words and one place; afterwards nothing may be left.
Judged as well: the same with a rescue key, an adopted agent with its own `check`, a machine that is not there, one
that has files of the agent.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

from holdfast.cli.main import main
from holdfast_proofs.drills import Example, make_example
from holdfast_proofs.runner import Proof, ProofFailed, Result

NETWORK = "10.79.1"
NAME = f"hf-{os.getpid()}-far"
SSHD = Path(sys.prefix) / "ssh/usr/sbin/sshd"
LEFT = "ls -A ~root/.cache 2>/dev/null; ls -A /srv; pgrep -f [h]oldfast-far-drills"
PROJECT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class FarMachine:
    address: str
    rsh: str
    process: subprocess.Popen[bytes]

    def look(self, script: str) -> str:
        """What a script prints there, in the machine's own mounts."""
        words = ["nsenter", "-t", str(self.process.pid), "-m", "sh", "-c", script]
        return subprocess.run(words, capture_output=True, text=True, check=False).stdout


@contextlib.contextmanager
def far_machine(folder: Path, *hidden: Path) -> Generator[FarMachine]:
    """Another machine with an ssh server. `hidden`: what of this machine it has not."""
    if os.geteuid() != 0 or not SSHD.exists():
        raise ProofFailed("a second machine needs root and an ssh server", hint="run: scripts/setup ssh; as root")
    lab = Path(tempfile.mkdtemp(prefix="hf-far-", dir="/run"))
    for one in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(lab / one)], check=True)
    (lab / "authorized").write_bytes((lab / "user.pub").read_bytes())
    (lab / "known").write_text(
        f"[{NETWORK}.2]:22 {(lab / 'host.pub').read_text()}{NETWORK}.2 {(lab / 'host.pub').read_text()}"
    )
    passwd = Path("/etc/passwd").read_text()
    (lab / "passwd").write_text(
        passwd if "\nsshd:" in passwd else f"{passwd}sshd:x:100:65534::/run/sshd:/usr/sbin/nologin\n"
    )
    (lab / "config").write_text(
        f"Port 22\nListenAddress {NETWORK}.2\nHostKey {lab}/host\nAuthorizedKeysFile {lab}/authorized\n"
        f"PidFile none\nUsePAM no\nPermitRootLogin prohibit-password\nStrictModes no\nPasswordAuthentication no\n"
    )
    sshd = lab / "sshd"
    sshd.write_bytes(SSHD.read_bytes())
    sshd.chmod(0o755)
    for one in (SSHD.parents[2]).glob("lib/*/libwrap*"), SSHD.parents[1].glob("lib/*/libwrap*"):
        for library in one:
            (lab / library.name).write_bytes(library.read_bytes())
    script = "".join(f"mount -t tmpfs none '{one}'\n" for one in hidden)
    script += f"mount --bind {lab}/passwd /etc/passwd; mkdir -p /run/sshd; exec {sshd} -D -e -f {lab}/config"
    _ip("netns", "add", NAME)
    try:
        end = ("peer", "name", "hf-far", "netns", NAME)
        _ip("link", "add", "hf-near", "type", "veth", *end)
        _ip("address", "add", f"{NETWORK}.1/24", "dev", "hf-near")
        _ip("link", "set", "hf-near", "up")
        _ip("-n", NAME, "address", "add", f"{NETWORK}.2/24", "dev", "hf-far")
        _ip("-n", NAME, "link", "set", "hf-far", "up")
        _ip("-n", NAME, "link", "set", "lo", "up")
        words = ["ip", "netns", "exec", NAME, "unshare", "-m", "--propagation", "private", "sh", "-ec", script]
        with open(folder / "sshd.log", "wb") as log:
            env = {"PATH": os.defpath, "LD_LIBRARY_PATH": str(lab)}
            process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env)
        options = f"ssh -F none -i {lab}/user -o UserKnownHostsFile={lab}/known -o StrictHostKeyChecking=yes"
        machine = FarMachine(f"ssh://root@{NETWORK}.2", options, process)
        _wait(machine, folder / "sshd.log")
        try:
            yield machine
        finally:
            process.kill()
            process.wait()
    finally:
        for pid in _ip("netns", "pids", NAME).split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), 9)
        _ip("netns", "delete", NAME)
        subprocess.run(["rm", "-rf", str(lab)], check=False)


def _wait(machine: FarMachine, log: Path) -> None:
    end = time.monotonic() + 30
    words = [*machine.rsh.split(), "-o", "BatchMode=yes", machine.address, "true"]
    while subprocess.run(words, capture_output=True, check=False).returncode:
        if machine.process.poll() is not None or time.monotonic() > end:
            raise ProofFailed(f"the ssh server does not serve: {log.read_text(errors='replace')[-800:]}")
        time.sleep(0.1)


def _ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ProofFailed(f"ip {' '.join(words)}: {done.stderr.strip()}", hint="iproute2 and root are needed")
    return done.stdout


def _end(*_: object) -> None:
    sys.exit(1)  # what was begun is removed


def run_all(given: argparse.Namespace) -> Result:
    signal.signal(signal.SIGTERM, _end)
    findings: list[str] = []
    figures: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory(prefix="hf-far-drill-", dir=given.folder) as text:
        folder = Path(text)
        os.environ["HOME"] = text
        example = make_example(folder / "root")
        adopted = make_example(folder / "adopted", name="bert", adopted=True)
        key = folder / "root" / "rescue"
        if main(["rescue", "add", str(key), "--home", str(example.home.folder)]):
            raise ProofFailed("no rescue key")
        with far_machine(folder, Path("/root"), PROJECT, folder) as machine:
            on = ("--on", machine.address, "--rsh", machine.rsh)
            for name, agent, words, expected in (
                ("quarterly", example, ("--quarterly",), "pass with findings"),
                ("rescue key", example, ("--daily", "--rescue-key", str(key)), "pass"),
                ("adopted", adopted, ("--quarterly",), "pass with findings"),
            ):
                done = _drill(agent, *words, *on)
                left = machine.look(LEFT).split()
                figures.append({"drill": name, **done, "left": left})
                print(json.dumps(figures[-1]), file=sys.stderr, flush=True)
                if done.get("verdict") != expected:
                    findings.append(f"{name}: {done}")
                if done.get("infrastructure") != machine.address:
                    findings.append(f"{name}: infrastructure {done.get('infrastructure')}")
                if left:
                    findings.append(f"{name}: left on the other machine: {left}")
            findings += _refusals(example, machine, on, figures)
            harm = _drill(
                example, "--quarterly", "--on", "ssh://root@10.79.1.77", "--rsh", f"{machine.rsh} -o ConnectTimeout=2"
            )
            figures.append({"drill": "no such machine", **harm})
            if harm.get("verdict") != "not proven":
                findings.append(f"a machine that is not there: {harm}")
    summary = f"{len(figures)} drills on another machine; {len(findings)} findings"
    return Result(green=not findings, summary=summary, figures=figures, findings=findings)


def _refusals(
    example: Example, machine: FarMachine, on: tuple[str, ...], figures: list[dict[str, object]]
) -> list[str]:
    """A drill that is killed in the middle; then a machine that has files of the agent."""
    findings: list[str] = []
    with _started(example, "--quarterly", *on) as process:
        end = time.monotonic() + 60
        while not (seen := "holdfast-far-drills" in machine.look(LEFT)) and time.monotonic() < end:
            time.sleep(0.05)
        time.sleep(0.5)
        running = process.poll() is None
        process.kill()
    end = time.monotonic() + 30
    while (left := machine.look(LEFT).split()) and time.monotonic() < end:
        time.sleep(0.1)
    figures.append({"drill": "killed", "seen": seen, "running": running, "left": left})
    if left or not (seen and running):
        findings.append(f"after a kill of the drill: {figures[-1]}")
    words = ["nsenter", "-t", str(machine.process.pid), "-m", "mkdir", "-p", str(example.root / "vault")]
    subprocess.run(words, check=True)
    done = _drill(example, "--quarterly", *on)
    figures.append({"drill": "not fresh", **done})
    if done.get("verdict") != "not proven" or "not fresh" not in str(done.get("reason")):
        findings.append(f"a machine with files of the agent: {done}")
    return findings


@contextlib.contextmanager
def _started(example: Example, *words: str) -> Generator[subprocess.Popen[str]]:
    reads, writes = os.pipe()
    os.write(writes, example.words.encode() + b"\n")
    os.close(writes)
    command = [sys.executable, "-P", "-m", "holdfast", "drill", "run", *words, "--words-fd", str(reads), "--json"]
    command += ["--home", str(example.home.folder), "--folder", str(example.root / "drill")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, pass_fds=(reads,)) as process:
        os.close(reads)
        yield process


def _drill(example: Example, *words: str) -> dict[str, object]:
    began = time.monotonic()
    with _started(example, *words) as process:
        told, error = process.communicate()
    try:
        found = json.loads(told)["drills"][0]
    except (ValueError, LookupError):
        return {"verdict": f"exit {process.returncode}", "reason": error[-400:]}
    names = ("verdict", "reason", "rto_s", "rpo_s", "identity_same")
    where = json.loads(Path(found["report"]).read_text())["report"]["infrastructure"]
    return {
        **{name: found[name] for name in names},
        "infrastructure": where,
        "seconds": round(time.monotonic() - began, 1),
    }


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--folder", default=None, help="where the example agent is made")


PROOF = Proof(name="far_drill", purpose=__doc__ or "", add_options=add_options, run=run_all)

if __name__ == "__main__":
    sys.exit(PROOF.main())
