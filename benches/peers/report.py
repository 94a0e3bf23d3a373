"""The table, and its place in docs/benchmarks.md."""

import re
import textwrap

from measures import MEASURES, number
from summary import OURS, conditions, first_in, not_first, show_ratio


def report(whole, programs):
    """What there is to say at once, and below it the table, folded."""
    rows = whole["rows"]
    lines = [*textwrap.wrap(conditions(whole["setting"]), 130), "", "| | versions |", "|---|---|"]
    lines += [f"| {program.label} | {whole['versions'][program.name]} |" for program in programs]
    if OURS in whole["versions"]:
        others = [f"* {line}" for line in not_first(rows)]
        lines += ["", f"{OURS} is first in {first_in(rows)} of {len(rows)} rows." + (" Not first in:" if others else "")]
        lines += ["", *others] if others else []
    if whole["failures"]:
        lines += ["", "Failures:", "", *failures(whole, programs)]
    lines += ["", "<details>", f"<summary>The table: {len(rows)} rows, {len(programs)} libraries</summary>", ""]
    lines += [*table(whole, programs), "", "</details>"]
    return "\n".join(lines) + "\n"


def table(whole, programs):
    names = [f"{program.label}<br><sub>{short(whole['versions'][program.name])}</sub>" for program in programs]
    yield f"| | place of {OURS} | " + " | ".join(names) + " |"
    yield "|---|---|" + "---|" * len(programs)
    for measure in (measure for measure in MEASURES if measure.key in whole["rows"]):
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
    if "median" not in cell:
        return "**failed**"
    parts = [number(cell["median"])]
    if "least" in cell:
        parts.append(f"<sub>{number(cell['least'])}–{number(cell['most'])}</sub>")
    if "ratio" in cell:
        parts.append(f"<sub>× {show_ratio(cell['ratio'])}</sub>")
    if "note" in cell:
        parts.append(f"<sub>{cell['note']}</sub>")
    if "violations" in cell:
        parts.append(f"**{cell['violations']} times two holders**")
    if "errors" in cell:
        parts.append(f"<sub>{cell['errors']} errors</sub>")
    if "failed" in cell:
        parts.append(f"**failed {cell['failed']} of {cell['failed'] + cell['rounds']}**")
    return "<br>".join(parts)


def place(at):
    if at is None:
        return "**none**"
    if at["at"] == 1:
        return f"1 of {at['of']}"
    return f"**{at['at']} of {at['of']}**" + (f"<br><sub>{at['note']}</sub>" if "note" in at else "")


def write(text, path):
    """Between the markers."""
    page = path.read_text(encoding="utf-8")
    new, found = re.subn(
        r"(<!-- peers -->\n).*?(<!-- end peers -->)", lambda match: match[1] + text + match[2], page, flags=re.DOTALL
    )
    if found != 1:
        raise SystemExit(f"{path} has no place for the table")
    path.write_text(new, encoding="utf-8")
