"""The table, and its place in docs/benchmarks.md."""

import re
import statistics

from measures import LESS, MEASURES, cell, ratios

OURS = "leasehold"


def table(results, programs, versions, setting):
    """`results[run][program]` has one outcome for each round."""
    lines = [
        f"| | place of {OURS} | " + " | ".join(program.label for program in programs) + " |",
        "|---|---|" + "---|" * len(programs),
    ]
    for measure in (measure for measure in MEASURES if measure.run in results):
        outcomes = results[measure.run]
        cells = {program.name: cell(measure, outcomes[program.name]) for program in programs}
        texts = [text(measure, cells[program.name], outcomes, program.name) for program in programs]
        lines.append(f"| {measure.label} | {place(measure, cells, outcomes)} | " + " | ".join(texts) + " |")
    if failed := list(troubles(results, programs)):
        lines += ["", "Failures:", "", *(f"* {line}" for line in failed)]
    lines += ["", setting, "", *(f"* {program.label}: {versions[program.name]}" for program in programs)]
    return "\n".join(lines) + "\n"


def text(measure, cell, outcomes, name):
    if not cell.values:
        return "**failed**"
    parts = [measure.show(cell.median)]
    if len(cell.values) > 1:
        parts.append(f"<sub>{measure.show(min(cell.values))}–{measure.show(max(cell.values))}</sub>")
    if name != OURS and (all_ratios := ratios(outcomes[name], outcomes.get(OURS, []), measure)):
        parts.append(f"<sub>× {ratio(statistics.median(all_ratios))}</sub>")
    if cell.note:
        parts.append(f"<sub>{cell.note}</sub>")
    if cell.violations:
        parts.append(f"**{cell.violations} times two holders**")
    if cell.errors:
        parts.append(f"<sub>{cell.errors} errors</sub>")
    if cell.failures:
        parts.append(f"**failed {len(cell.failures)} of {len(cell.failures) + cell.rounds}**")
    return "<br>".join(parts)


def ratio(value):
    return f"{value:.0f}" if value >= 10 else f"{value:.2f}"


def place(measure, cells, outcomes):
    """Ours among those that did what the row is about, by the ratios, since these are of the same moments."""
    if OURS not in cells or not cells[OURS].ranked:
        return "**none**"
    rivals = [name for name, cell in cells.items() if name != OURS and cell.ranked]
    before = [all_ratios for name in rivals if (all_ratios := is_before(measure, outcomes[name], outcomes[OURS]))]
    if not before:
        return f"1 of {len(rivals) + 1}"
    # Whether somebody is before us in every round.
    certain = any(all(better(measure, one) for one in all_ratios) for all_ratios in before)
    return f"**{len(before) + 1} of {len(rivals) + 1}**" + ("" if certain else "<br><sub>not in all rounds</sub>")


def is_before(measure, theirs, ours):
    """The ratios, if they are before us; who differs by less than what is shown is not."""
    all_ratios = ratios(theirs, ours, measure)
    middle = statistics.median(all_ratios) if all_ratios else 1
    return all_ratios if ratio(middle) != ratio(1) and better(measure, middle) else []


def better(measure, ratio):
    return ratio < 1 if measure.better == LESS else ratio > 1


def troubles(results, programs):
    """What went wrong, in words."""
    for run, outcomes in results.items():
        for program in programs:
            failures = [outcome for outcome in outcomes[program.name] if isinstance(outcome, str)]
            if failures:
                yield f"{program.label}, {run}: failed in {len(failures)} of {len(outcomes[program.name])} rounds: {failures[0]}"


def write(text, path):
    """Between the markers."""
    page = path.read_text(encoding="utf-8")
    new, found = re.subn(
        r"(<!-- peers -->\n).*?(<!-- end peers -->)", lambda match: match[1] + text + match[2], page, flags=re.DOTALL
    )
    if found != 1:
        raise SystemExit(f"{path} has no place for the table")
    path.write_text(new, encoding="utf-8")
