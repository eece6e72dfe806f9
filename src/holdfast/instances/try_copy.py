"""`python -m holdfast.instances.try_copy BYTES`: opens the document on standard input with at most so much memory.

Ends with 0 only where that is enough, and with TOO_MANY where it has more changes than are taken. A copy of a
document is packed, and a small one may unpack to gigabytes, even where only its changes are counted; what happens to
this process then harms no other.
"""

from __future__ import annotations

import resource
import sys


def main() -> int:
    from holdfast.errors import BadUpdate
    from holdfast.instances.line_document import CHANGES_MAX, TOO_MANY, LineDocument, changes_in
    from holdfast.memory.exchange import FILE_BYTES_MAX

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
