"""The floor: rows of a step's size into raw PostgreSQL, each in a commit of its own, over one connection.

python bench/postgres_floor.py --folder DIR --url postgresql://...
"""

from __future__ import annotations

import argparse
import json
import os
import time

import psycopg

ROW_BYTES = 600
SECONDS = 3.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder")
    parser.add_argument("--url", required=True)
    options = parser.parse_args()
    body, commits = os.urandom(ROW_BYTES), 0
    with psycopg.connect(options.url, autocommit=True) as db:
        db.execute("CREATE TABLE floor (n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, body bytea)")
        began = time.perf_counter()
        while (took := time.perf_counter() - began) < SECONDS:
            db.execute("INSERT INTO floor (body) VALUES (%b)", (body,))
            commits += 1
    print(json.dumps({"commits_per_s": commits / took}))


if __name__ == "__main__":
    main()
