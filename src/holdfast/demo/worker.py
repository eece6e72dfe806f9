"""`python -m holdfast.demo.worker PARENT ORDER`: the worker process of `holdfast worker`.

It only makes sure that the worker dies with its parent, which `holdfast worker` does itself.
"""

from __future__ import annotations

import sys

from holdfast.app.worker_process import main as serve
from holdfast.host.hardening import die_with_parent


def main() -> int:
    _, parent, order = sys.argv
    die_with_parent(int(parent))
    return serve(order)


if __name__ == "__main__":
    sys.exit(main())
