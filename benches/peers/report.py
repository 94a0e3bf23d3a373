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
        lines.append(f"| {measure.label} | {place(measure, cells)} | " + " | ".join(texts) + " |")
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


def place(measure, cells):
    """Ours among those that did what the row is about."""
    if OURS not in cells or not cells[OURS].ranked:
        return "**none**"
    ranked = sorted((cell for cell in cells.values() if cell.ranked), key=lambda cell: cell.median)
    if measure.better != LESS:
        ranked.reverse()
    # Who has the same is not before us.
    at = next(at for at, cell in enumerate(ranked) if measure.show(cell.median) == measure.show(cells[OURS].median))
    if at == 0:
        return f"1 of {len(ranked)}"
    first, ours = ranked[0].values, cells[OURS].values
    apart = min(ours) > max(first) or max(ours) < min(first)
    return f"**{at + 1} of {len(ranked)}**" + ("" if apart else "<br><sub>spreads overlap</sub>")


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
