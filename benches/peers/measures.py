"""The rows of the table: what is read from the runs, and what the rounds say together."""

import statistics
from dataclasses import dataclass
from typing import Callable

LESS, MORE = "less", "more"


@dataclass
class Measure:
    label: str
    run: str
    value: Callable  # of the figures of one run
    better: str
    show: Callable  # a value as text
    pooled: bool = False  # from the hand-overs of all rounds together, since one round has few


@dataclass
class Cell:
    """One program in one row."""

    values: list  # one for each round that did not fail, or one for all
    rounds: int  # that did not fail
    failures: list  # what went wrong, one for each round that failed
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
        return self.rounds > len(self.failures) and not self.violations and self.counts


def number(value):
    """With three digits that count, or all before the point."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def quantile(times, percent):
    return times[len(times) * percent // 100]


def rate(figures):
    return figures["turns"] / figures["seconds"]


def commands(figures):
    return figures["commands"] / figures["all_turns"]


def micros(name):
    return lambda figures: figures[name] / 1e3


def share(name, tasks):
    """Of what each task would have if all had the same."""
    return lambda figures: figures[name] * tasks / figures["turns"]


def hand_over(percent):
    return lambda figures: quantile(figures["times"], percent) / 1e6


def one_name(tasks, work):
    run, what = f"one-name-{tasks}-{work}ms", f"one name, {tasks} tasks, {f'{work} ms of' if work else 'no'} work"
    return [
        Measure(f"{what}: turns a second", run, rate, MORE, number),
        Measure(f"{what}: least served task, in fair shares", run, share("least", tasks), MORE, number),
        Measure(f"{what}: most served task, in fair shares", run, share("most", tasks), LESS, number),
        Measure(f"{what}: server commands a turn", run, commands, LESS, number),
    ]


def handed(where, run):
    return [
        Measure(f"release to next holder, {where}: p50, ms", run, hand_over(50), LESS, number),
        Measure(f"release to next holder, {where}: p99 of all rounds, ms", run, hand_over(99), LESS, number, pooled=True),
    ]


MEASURES = [
    Measure("nobody else wants it: lock + unlock, p50, µs", "own-names-1", micros("p50"), LESS, number),
    Measure("nobody else wants it: lock + unlock, p99, µs", "own-names-1", micros("p99"), LESS, number),
    *(
        Measure(f"{tasks} task{'s'[:tasks > 1]}, a name each: pairs a second", f"own-names-{tasks}", rate, MORE, number)
        for tasks in (1, 16, 256)
    ),
    *one_name(16, 0),
    *one_name(256, 0),
    *one_name(16, 1),
    *one_name(256, 1),
    *handed("one process", "hand-over-inside"),
    *handed("two processes", "hand-over-between"),
    Measure("10,000 locks held and renewed: bytes each", "held", lambda figures: figures["bytes"], LESS, number),
]


def cell(measure, outcomes):
    """`outcomes` are figures, or texts where a round failed."""
    figures = [outcome for outcome in outcomes if isinstance(outcome, dict)]
    failures = [outcome for outcome in outcomes if isinstance(outcome, str)]
    if measure.pooled and figures:
        values = [measure.value({"times": sorted(sum((figure["times"] for figure in figures), []))})]
    else:
        values = [measure.value(figure) for figure in figures]
    result = Cell(values, len(figures), failures)
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
