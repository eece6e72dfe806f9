"""The process of a blocking tool as it was without a keeper: it dies with its worker, and what it started does not."""

from __future__ import annotations

import mmap
from collections.abc import Callable

from holdfast.host.hardening import die_with_parent
from holdfast.runtime.tool import child
from holdfast.runtime.tool.keeper import Kept


def start_bare(parent: int, _lock_fd: int | None, tell: Callable[[bool, int], None]) -> Kept:
    die_with_parent(parent)
    tell(False, 0)
    return Kept(True, None, mmap.mmap(-1, 8))


if __name__ == "__main__":
    child.start_kept = start_bare
    child.main()
