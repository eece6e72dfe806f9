"""Types are examined once, under a lock: several threads may read the same type for the first time at once."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import holdfast
from holdfast.core.decoding import convert, decode_json, msgpack_decoder

PACKAGE = Path(holdfast.__file__).parent
READS_A_TYPE = re.compile(r"msgspec\.(convert\(|(json|msgpack|toml|yaml)\.(decode|Decoder)\()")

# Each round defines sixty structs, one in the other, and four threads read the outermost one. With msgspec's own
# functions the process ends with a segmentation fault in one of the first rounds.
THREADS = """
import sys, threading, types
from holdfast.core.decoding import convert, decode_json

def structs(number):
    lines = ["import msgspec", f"__name__ = 'structs_{number}'"]
    for at in range(60):
        inner = f"'C{at - 1} | None' = None" if at else "int = 1"
        lines.append(f"class C{at}(msgspec.Struct):\\n    a: 'int' = 0\\n    b: 'str' = ''\\n    c: {inner}")
    module = sys.modules[f"structs_{number}"] = types.ModuleType(f"structs_{number}")
    exec("\\n".join(lines), module.__dict__)
    return module.C59

sys.setswitchinterval(1e-6)
for number in range(40):
    type_, barrier = structs(number), threading.Barrier(4)

    def read():
        barrier.wait()
        for _ in range(20):
            assert decode_json(b'{"a": 1, "c": {"a": 2}}', type_).c.a == 2
            assert convert({"a": 1, "c": {"b": "x"}}, type_).c.b == "x"

    threads = [threading.Thread(target=read) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
"""


def test_threads_read_a_type_for_the_first_time_at_once() -> None:
    done = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_no_other_module_asks_msgspec_to_read_a_type() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}: {line.strip()}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.name != "decoding.py"
        for line in path.read_text().splitlines()
        if READS_A_TYPE.search(line)
    ]
    assert found == []


def test_what_does_not_fit_is_refused() -> None:
    assert decode_json(b'{"a": [1, 2]}') == {"a": [1, 2]}
    assert msgpack_decoder(list[bytes]).decode(msgspec.msgpack.encode([b"x"])) == [b"x"]
    assert convert({"a": 1}, dict[str, int] | None) == {"a": 1}
    with pytest.raises(msgspec.ValidationError):
        convert({"a": "x"}, dict[str, int])
    with pytest.raises(msgspec.DecodeError):
        decode_json(b"{", dict[str, int])
