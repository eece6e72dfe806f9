"""What another instance sent, looked at before it is taken: `check_foreign`.

Changes are not packed, and say how many they are. A copy of a document is packed, and a small one may unpack to
gigabytes, even where only its changes are counted. So it is tried in a process of its own, and what happens to that
one harms no other: `python -m holdfast.instances.try_copy BYTES` opens the copy on standard input with at most so much
memory. It ends with 0 only where that is enough, and with TOO_MANY where there are more changes than are taken.
"""

from __future__ import annotations

import resource
import subprocess
import sys

from holdfast.errors import BadUpdate
from holdfast.instances.line_document import CHANGES_MAX, LineDocument, changes_in
from holdfast.memory.exchange import FILE_BYTES_MAX

MAGIC, MODE_AT, UNPACKED = b"loro", slice(20, 22), b"\0\4"  # of what the library exports; all else is packed
TRY_S, TRY_BYTES = 300.0, 1024 * 1024 * 1024  # of the process that tries a copy
TOO_MANY = 3


def check_foreign(data: bytes) -> None:
    """Refuse what another instance sent where it would take too much memory. Raises BadUpdate."""
    if not data:
        return
    if not data.startswith(MAGIC):
        raise BadUpdate("the changes to the document cannot be read")
    if data[MODE_AT] == UNPACKED:
        if (count := changes_in(data)) > CHANGES_MAX:
            raise BadUpdate(f"it has {count:,} changes; at most {CHANGES_MAX:,} are taken at once")
        return
    try:
        command = [sys.executable, "-P", "-m", "holdfast.instances.try_copy", str(TRY_BYTES)]
        code = subprocess.run(command, input=data, capture_output=True, timeout=TRY_S, check=False).returncode
    except subprocess.TimeoutExpired:
        code = 1
    if code == TOO_MANY:
        raise BadUpdate(f"it has more than {CHANGES_MAX:,} changes")
    if code:
        raise BadUpdate("it is damaged, or would take too much memory")


def main() -> int:
    data = sys.stdin.buffer.read()
    most = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        if changes_in(data) > CHANGES_MAX:
            return TOO_MANY
        return int(sum(len(line) + 1 for line in LineDocument(data).lines()) > FILE_BYTES_MAX)
    except (BadUpdate, MemoryError):
        return 1


if __name__ == "__main__":
    sys.exit(main())
