"""build/bench.json as a picture: `plot.py BENCH_JSON PNG`. Runs in the peers' own venv."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot


def main(source: str, target: str) -> None:
    result = json.loads(Path(source).read_text())
    names = list(dict.fromkeys(row["subject"] for row in result["rates"]))
    sizes = sorted({row["tasks"] for row in result["rates"]})
    rates = {(row["subject"], row["tasks"]): row["steps_per_s"] for row in result["rates"]}
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.5), width_ratios=(3, 2), layout="constrained")
    width = 0.8 / len(names)
    for number, name in enumerate(names):
        places = [place + (number - (len(names) - 1) / 2) * width for place in range(len(sizes))]
        heights = [rates.get((name, size), 0) for size in sizes]
        bars = left.bar(places, heights, width, label=name)
        left.bar_label(bars, fmt="{:,.0f}", fontsize=6, rotation=90, padding=2)
    floor = result["floor_commits_per_s"]
    left.axhline(floor, color="gray", linewidth=0.8, linestyle="--")
    left.annotate("raw SQLite, one synced commit each", (-0.4, floor * 1.06), fontsize=7)
    left.set_yscale("log")
    left.set_ylim(top=max(rates.values()) * 4)
    left.set_xticks(range(len(sizes)), [f"{size} tasks" for size in sizes])
    left.set_ylabel("steps per second (log)")
    left.legend(fontsize=7, ncols=2)
    left.set_title("Steps that do nothing", fontsize=10)
    paces = result.get("long", {}).get("by_thousand", [])
    right.plot(range(1, len(paces) + 1), paces, marker="o")
    right.set_ylim(bottom=0)
    right.set_xlabel("thousand")
    right.set_ylabel("steps per second")
    right.set_title("One task of 10,000 steps", fontsize=10)
    figure.savefig(target, dpi=150)


if __name__ == "__main__":
    main(*sys.argv[1:])
