"""What the rounds say together: all that the table and the pictures need, small enough to be kept beside the programs."""

import json
import statistics
from dataclasses import dataclass

from measures import LESS, MEASURES

OURS = "leasehold"


@dataclass
class Cell:
    """One program in one row."""

    values: list  # one for each round that did not fail, or one for all
    rounds: int  # that did not fail
    failed: int
    violations: int = 0
    errors: int = 0
    counts: bool = True  # it did what the row is about
    note: str = ""

    @property
    def median(self):
        return statistics.median(self.values) if self.values else None

    @property
    def ranked(self):
        """One that failed now and then is still somebody to be measured by."""
        return self.rounds > self.failed and not self.violations and self.counts

    def figures(self, ratio):
        """As they are kept, without what is not there."""
        spread = len(self.values) > 1
        figures = {
            "median": self.median,
            "least": min(self.values) if spread else None,
            "most": max(self.values) if spread else None,
            "ratio": ratio,
        }
        kept = {name: rounded(value) for name, value in figures.items() if value is not None}
        others = {"note": self.note, "violations": self.violations, "errors": self.errors, "failed": self.failed}
        return kept | {name: value for name, value in others.items() if value} | {"rounds": self.rounds}


def rounded(value):
    value = float(f"{value:.6g}")
    return int(value) if value.is_integer() else value


def summary(results, versions, setting, origin):
    """`results[run][program]` has one outcome for each round: figures, or a text where it failed."""
    rows = {measure.key: row(measure, results[measure.run]) for measure in MEASURES if measure.run in results}
    return {"origin": origin, "setting": setting, "versions": versions, "failures": failures(results), "rows": rows}


def row(measure, outcomes):
    cells = {name: cell(measure, theirs) for name, theirs in outcomes.items()}
    between = {name: ratios(theirs, outcomes.get(OURS, []), measure) for name, theirs in outcomes.items() if name != OURS}
    kept = {
        name: one.figures(statistics.median(between[name]) if between.get(name) else None) for name, one in cells.items()
    }
    return {"place": place(measure, cells, between)} | kept


def cell(measure, outcomes):
    figures = [outcome for outcome in outcomes if isinstance(outcome, dict)]
    if measure.pooled and figures:
        values = [measure.value({"times": sorted(sum((figure["times"] for figure in figures), []))})]
    else:
        values = [measure.value(figure) for figure in figures]
    result = Cell(values, len(figures), len(outcomes) - len(figures))
    result.violations = sum(figure.get("violations", 0) for figure in figures)
    result.errors = sum(figure.get("errors", 0) for figure in figures)
    if any(figure.get("renewed") is False for figure in figures):
        result.counts, result.note = False, "not renewed"
    if heaps := [figure["heap"] for figure in figures if "heap" in figure]:
        result.note = f"{statistics.median(heaps):.0f} in live objects"
    return result


def ratios(outcomes, ours, measure):
    """Of the same round, so that the machine's mood is in both halves; of everything where rounds are pooled."""
    if measure.pooled:
        one, other = cell(measure, outcomes), cell(measure, ours)
        return [one.median / other.median] if one.values and other.values else []
    pairs = [(one, other) for one, other in zip(outcomes, ours) if isinstance(one, dict) and isinstance(other, dict)]
    pairs = [(measure.value(one), measure.value(other)) for one, other in pairs]
    return [one / other for one, other in pairs if other > 0]


def place(measure, cells, between):
    """Ours among those that did what the row is about, by the ratios, since these are of the same moments."""
    if OURS not in cells or not cells[OURS].ranked:
        return None
    rivals = [name for name, cell in cells.items() if name != OURS and cell.ranked]
    before = [between[name] for name in rivals if is_before(measure, between[name])]
    # Whether somebody is before us in every round.
    certain = not before or any(all(better(measure, one) for one in ratios) for ratios in before)
    return {"at": len(before) + 1, "of": len(rivals) + 1} | ({} if certain else {"note": "not in all rounds"})


def is_before(measure, ratios):
    """Who differs by less than what is shown is not."""
    middle = statistics.median(ratios) if ratios else 1
    return show_ratio(middle) != show_ratio(1) and better(measure, middle)


def better(measure, ratio):
    return ratio < 1 if measure.better == LESS else ratio > 1


def show_ratio(value):
    return f"{value:.0f}" if value >= 10 else f"{value:.2f}"


def failures(results):
    """What went wrong, in words."""
    found = []
    for run, outcomes in results.items():
        for name, theirs in outcomes.items():
            if texts := [outcome for outcome in theirs if isinstance(outcome, str)]:
                found.append({"program": name, "run": run, "failed": len(texts), "of": len(theirs), "first": texts[0]})
    return found


def not_first(rows):
    """The rows where leasehold is not first, with its place, in words."""
    by_load = {}
    for measure in MEASURES:
        at = rows.get(measure.key, {}).get("place")
        if measure.key in rows and (at is None or at["at"] > 1):
            where = f"{at['at']} of {at['of']}" + (f", {at['note']}" if "note" in at else "") if at else "no place"
            by_load.setdefault(measure.load, []).append(f"{measure.what} ({where})")
    return [f"{load}: {', '.join(found)}" for load, found in by_load.items()]


def first_in(rows):
    return sum(bool(row["place"]) and row["place"]["at"] == 1 for row in rows.values())


def conditions(setting):
    """Under which it was measured, in words."""
    return (
        f"Measured with {setting['server']} on loopback; {setting['cores']} cores, {setting['system']}, "
        f"for the server and the program under test. {setting['rounds']} rounds, {setting['held_rounds']} of held locks; "
        f"{setting['seconds']:g} s for each run, hand-overs {setting['seconds'] * 1.5:g} s."
    )


def save(whole, path):
    """A line for each cell, so that one sees what a new run changes."""
    rows = [
        f"    {quoted(key)}: {{\n" + ",\n".join(f"      {quoted(name)}: {quoted(one)}" for name, one in row.items()) + "\n    }"
        for key, row in whole["rows"].items()
    ]
    heads = [f"  {quoted(name)}: {quoted(part, indent=2)}" for name, part in whole.items() if name != "rows"]
    text = ",\n".join([*heads, '  "rows": {\n' + ",\n".join(rows) + "\n  }"])
    path.write_text("{\n" + text + "\n}\n", encoding="utf-8")


def quoted(value, indent=None):
    return json.dumps(value, ensure_ascii=False, indent=indent).replace("\n", "\n  ")


def load(path):
    return json.loads(path.read_text(encoding="utf-8"))
