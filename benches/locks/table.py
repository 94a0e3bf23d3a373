"""The figures of scripts/bench: all of them in benches/locks.json, some of them in the table in docs/benchmarks.md.

table.py            writes the table on the page, from locks.json
table.py PRINTED    first writes locks.json, from the table that the benchmarks have printed"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
KEPT, PAGE = ROOT / "benches" / "locks.json", ROOT / "docs" / "benchmarks.md"

MISSED = ": not reached"

# What the page shows, beside all that miss their aim.
SHOWN = [
    "uncontended lock + unlock, p50, p99",
    "uncontended lock + unlock, p50 divided by that of two bare `EVALSHA`",
    "1 task, one name per task",
    "16 tasks, one name per task",
    "256 tasks, one name per task",
    "2,048 tasks, one name per task",
    "16 tasks, one name per task, on a cluster of three",
    "256 tasks, one name per task, on a cluster of three",
    "2,048 tasks, one name per task, on a cluster of three",
    "2,048 tasks, one name per task, a round trip of 50 ms",
    "64 tasks, one name, 20,000 turns: turns per second",
    "hand-over inside a process, p50, p99",
    "hand-over between processes, p50, p99",
    "hand-over between processes over three servers, p50, p99",
    "8 processes of 8 tasks, 1 ms of work: the process with the fewest turns",
    "8 processes of 8 tasks read one name: turns per second",
    "a writer every 10 ms beside 63 readers: its wait, p50, p99",
    "8 processes of 8 tasks, a fair lock: turns per second",
    "8 processes of 8 tasks, a fair lock: the process with the fewest turns",
    "8 processes of 2 tasks, random 2 of 12 names, 1 ms of work: turns per second of a `MultiLock`",
    "a task that wants 8 names beside 8 tasks that want one of them each, 1 ms of work: turns per second",
    "holder killed: from the end of the lease to the next holder",
    "10,000 tasks wait 10 s for one name: bytes per task",
    "100,000 held and renewed locks, bytes each",
    "100,000 held and renewed locks, share of one core that renews them",
    "20,000 held locks, `watchdog` 6 s, a round trip of 50 ms, an outage of 2.5 s: lost",
    "from a `DEL` by another client to `Guard::lost`, p50, p99",
    "memory of the server for a held lock, `tracking` off and on",
]


def readable(text):
    """With commas in great numbers, and a space before units."""
    text = re.sub(r"(?<![\d.,])\d{4,}(?![\d.])", lambda number: f"{int(number[0]):,}", text)
    return re.sub(r"(\d)(ms|µs|ns)\b", r"\1 \2", text)


def read(printed):
    """The rows of a printed table, as data."""
    rows = []
    for line in printed.splitlines()[2:]:
        what, measured, raw, aim = (readable(cell.strip()) for cell in line.strip("|").split("|"))
        row = {"what": what, "measured": measured}
        if raw:
            row["raw round trip"] = raw
        if aim:
            row |= {"aim": aim.removesuffix(MISSED), "reached": not aim.endswith(MISSED)}
        rows.append(row)
    if len({row["what"] for row in rows}) < len(rows):
        raise SystemExit("two rows have one name")
    return rows


def setting():
    server = subprocess.run([ROOT / "scripts" / "need-redis"], capture_output=True, text=True, check=True).stdout.strip()
    says = [subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout for program in (server, "rustc")]
    version, rust = re.search(r"v=(\S+)", says[0])[1], says[1].split()[1]
    return {"server": f"{says[0].split()[0]} {version}", "rust": f"Rust {rust}", "cores": len(os.sched_getaffinity(0))}


def save(whole):
    """A line for each row, so that one sees what a new run changes."""
    rows = ",\n".join(f"    {json.dumps(row, ensure_ascii=False)}" for row in whole["rows"])
    KEPT.write_text(f'{{\n  "setting": {json.dumps(whole["setting"])},\n  "rows": [\n{rows}\n  ]\n}}\n', encoding="utf-8")


def table(whole):
    setting, rows = whole["setting"], {row["what"]: row for row in whole["rows"]}
    if gone := [what for what in SHOWN if what not in rows]:
        raise SystemExit(f"{KEPT} has no row {gone[0]!r}")
    missed = [what for what, row in rows.items() if row.get("reached") is False and what not in SHOWN]
    yield f"Measured with {setting['server']} on loopback and {setting['rust']}, on {setting['cores']} cores for clients and servers together.\n"
    yield "| what | measured | raw round trip | aim |\n|---|---|---|---|"
    for what in [*SHOWN, *missed]:
        row = rows[what]
        aim = row.get("aim", "") + (MISSED if row.get("reached") is False else "")
        yield f"| {what} | {row['measured']} | {row.get('raw round trip', '')} | {aim} |"


def write(text):
    """Between the markers."""
    page = PAGE.read_text(encoding="utf-8")
    new, found = re.subn(r"(<!-- table -->\n).*?(<!-- end -->)", lambda match: match[1] + text + match[2], page, flags=re.DOTALL)
    if found != 1:
        raise SystemExit(f"{PAGE} has no place for the table")
    PAGE.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    if printed := sys.argv[1:]:
        save({"setting": setting(), "rows": read(Path(printed[0]).read_text(encoding="utf-8"))})
    write("\n".join(table(json.loads(KEPT.read_text(encoding="utf-8")))) + "\n")
