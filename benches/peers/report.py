"""The table, and its place in docs/benchmarks.md."""

import re
import textwrap

from measures import MEASURES, number
from summary import OURS, conditions, first_in, not_first, show_ratio

# The rows that the page shows. measured.json has all.
SHOWN = {
    "own-names-1 p50",
    "own-names-1 p99",
    "own-names-16 rate",
    "own-names-256 rate",
    "one-name-16-0ms rate",
    "one-name-16-0ms least",
    "one-name-256-0ms rate",
    "one-name-16-1ms rate",
    "one-name-16-1ms least",
    "one-name-16-1ms commands",
    "one-name-16-read rate",
    "one-name-16-fair rate",
    "own-names-1-permits p50",
    "one-name-16-permits rate",
    "latch-1000 p50",
    "hand-over-inside p50",
    "hand-over-between p50",
    "held bytes",
    "own-names-1-three p50",
    "one-name-16-three rate",
}


def report(whole, programs):
    """What there is to say at once, and below it the table."""
    rows = whole["rows"]
    lines = [*textwrap.wrap(conditions(whole["setting"]), 130)]
    if OURS in whole["versions"]:
        others = [f"* {line}" for line in not_first(rows)]
        lines += ["", f"{OURS} is first in {first_in(rows)} of {len(rows)} measured rows." + (" Not first in:" if others else "")]
        lines += ["", *others] if others else []
    if whole["failures"]:
        lines += ["", "Failures:", "", *failures(whole, programs)]
    lines += ["", *table(whole, programs)]
    return "\n".join(lines) + "\n"


def table(whole, programs):
    """Of the rows that the page shows, or of all if these are not among them."""
    keys = [measure.key for measure in MEASURES if measure.key in whole["rows"]]
    shown = [key for key in keys if key in SHOWN] or keys
    names = [f"{program.label} {short(whole['versions'][program.name])}" for program in programs]
    yield f"| | place of {OURS} | " + " | ".join(names) + " |"
    yield "|---|---|" + "---|" * len(programs)
    for measure in (measure for measure in MEASURES if measure.key in shown):
        row = whole["rows"][measure.key]
        texts = [text(row[program.name]) if program.name in row else "–" for program in programs]
        yield f"| {measure.label} | {place(row['place'])} | " + " | ".join(texts) + " |"


def failures(whole, programs):
    labels = {program.name: program.label for program in programs}
    for one in whole["failures"]:
        yield f"* {labels[one['program']]}, {one['run']}: failed in {one['failed']} of {one['of']} rounds: {one['first']}"


def short(versions):
    """Of the library itself, which comes first."""
    return versions.split(",")[0].split()[-1]


def text(cell):
    """The median, and in brackets the ratio to ours."""
    if "median" not in cell:
        return "failed"
    ratio = f" (× {show_ratio(cell['ratio'])})" if "ratio" in cell else ""
    parts = [number(cell["median"]) + ratio]
    if "note" in cell:
        parts.append(cell["note"])
    if "violations" in cell:
        parts.append(f"{cell['violations']} times two holders")
    if "errors" in cell:
        parts.append(f"{cell['errors']} errors")
    if "failed" in cell:
        parts.append(f"failed in {cell['failed']} of {cell['failed'] + cell['rounds']} rounds")
    return ", ".join(parts)


def place(at):
    if at is None:
        return "none"
    return f"{at['at']} of {at['of']}" + (f", {at['note']}" if "note" in at else "")


def write(text, path):
    """Between the markers."""
    page = path.read_text(encoding="utf-8")
    new, found = re.subn(
        r"(<!-- peers -->\n).*?(<!-- end peers -->)", lambda match: match[1] + text + match[2], page, flags=re.DOTALL
    )
    if found != 1:
        raise SystemExit(f"{path} has no place for the table")
    path.write_text(new, encoding="utf-8")
