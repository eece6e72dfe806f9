"""The bench's figures as a table."""

from __future__ import annotations

from typing import Any

Figures = dict[str, Any]  # Any: numbers by name
OURS = "holdfast"


def table(result: Figures) -> str:
    lines = [
        f"raw SQLite, one row per synced commit, its log at full size: {result['floor_commits_per_s']:,.0f} /s; "
        f"the disk alone: {result['disk_syncs_per_s']:,.0f} syncs/s",
        "",
        f"{'subject':<24} {'tasks':>6} {'steps/s':>10} {'of floor':>9} {'ours is':>9} "
        f"{'commits/step':>13} {'bytes/step':>11}",
    ]
    ours = {row["tasks"]: row["steps_per_s"] for row in result["rates"] if row["subject"] == OURS}
    for row in sorted(result["rates"], key=lambda row: row["tasks"]):
        times = "" if row["subject"] == OURS else f"{ours[row['tasks']] / row['steps_per_s']:.1f} x"
        commits = f"{row['commits_per_step']:.2f}" if "commits_per_step" in row else ""
        size = f"{row['bytes_per_step']:,.0f}" if "bytes_per_step" in row else ""
        lines.append(
            f"{row['subject']:<24} {row['tasks']:>6} {row['steps_per_s']:>10,.0f} "
            f"{row['of_floor']:>9.2f} {times:>9} {commits:>13} {size:>11}"
        )
    if 1 in ours and len(ours) > 1:
        ratios = [f"{size} tasks {rate / ours[1]:.1f} x" for size, rate in ours.items() if size > 1]
        lines.append(f"beside one task: {', '.join(ratios)}")
    return "\n".join([*lines, *_rest(result)])


def _rest(result: Figures) -> list[str]:
    if "long" not in result:
        return []
    paces = result["long"]["by_thousand"]
    lines = [
        "",
        "one task of 10,000 steps, steps/s by thousand: "
        + " ".join(f"{pace:,.0f}" for pace in paces)
        + f"; the last is {result['long']['last_of_first']:.2f} of the first",
    ]
    lines += [
        f"resume of {one['tasks']:,.0f}: first step after {one['first_step_s']:.2f} s, all moving "
        f"after {one['all_moving_s']:.2f} s, done after {one['done_s']:.2f} s"
        for one in result["resume"]
    ]
    lines += [
        f"memory with {one['tasks']} tasks: worker {one['worker_mib']:.0f} MiB, its parent {one['parent_mib']:.0f} MiB"
        for one in result["memory"]
    ]
    lines.append(f"500 tasks that sleep and are awaited: {result['idle']['share_of_a_core']:.1%} of a core")
    lines.append(f"1,000 tasks of 50 steps in one process: {result['crowd']['peak_mib']:.0f} MiB at most")
    start = result["start"]
    lines.append(
        f"import holdfast: {start['import_s'] * 1000:.0f} ms more than a bare start; "
        f"holdfast --help: {start['help_s'] * 1000:.0f} ms"
    )
    return lines
