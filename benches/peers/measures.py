"""The rows of the table, and what is read for them from the figures of a run."""

from dataclasses import dataclass
from typing import Callable

LESS, MORE = "less", "more"


@dataclass
class Measure:
    run: str
    name: str  # within the run
    load: str
    what: str
    unit: str
    value: Callable  # of the figures of one run
    better: str
    pooled: bool = False  # from the hand-overs of all rounds together, since one round has few

    @property
    def key(self):
        return f"{self.run} {self.name}"

    @property
    def label(self):
        return f"{self.load}: {self.what}" + (f", {self.unit}" if self.unit else "")


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
    load = f"one name, {tasks} tasks, {f'{work} ms of' if work else 'no'} work"
    return contended(f"one-name-{tasks}-{work}ms", load, tasks)


def contended(run, load, tasks):
    return [
        Measure(run, "rate", load, "turns per second", "", rate, MORE),
        Measure(run, "least", load, "task with the fewest turns", "in fair shares", share("least", tasks), MORE),
        Measure(run, "most", load, "task with the most turns", "in fair shares", share("most", tasks), LESS),
        Measure(run, "commands", load, "server commands per turn", "", commands, LESS),
    ]


def uncontended(kind):
    run, load = f"own-names-1-{kind}", f"{kind} lock, uncontended"
    return [
        Measure(run, "p50", load, "p50 of lock + unlock", "µs", micros("p50"), LESS),
        Measure(run, "p99", load, "p99 of lock + unlock", "µs", micros("p99"), LESS),
    ]


def permits(kind, load):
    alone = f"own-names-1-{kind}"
    return [
        Measure(alone, "p50", f"{load}, uncontended", "p50 of acquire + release", "µs", micros("p50"), LESS),
        Measure(alone, "rate", f"{load}, uncontended", "turns per second", "", rate, MORE),
        Measure(alone, "commands", f"{load}, uncontended", "server commands per turn", "", commands, LESS),
        *contended(f"one-name-16-{kind}", f"{load}, 16 tasks, no work", 16),
    ]


def handed(where, run):
    load = f"release to next holder, {where}"
    return [
        Measure(run, "p50", load, "p50", "ms", hand_over(50), LESS),
        Measure(run, "p99", load, "p99 of all rounds", "ms", hand_over(99), LESS, pooled=True),
    ]


MEASURES = [
    Measure("own-names-1", "p50", "uncontended", "p50 of lock + unlock", "µs", micros("p50"), LESS),
    Measure("own-names-1", "p99", "uncontended", "p99 of lock + unlock", "µs", micros("p99"), LESS),
    *(
        Measure(f"own-names-{tasks}", "rate", f"{tasks} task{'s'[:tasks > 1]}, one name per task", "pairs per second", "", rate, MORE)
        for tasks in (1, 16, 256)
    ),
    *one_name(16, 0),
    *one_name(256, 0),
    *one_name(16, 1),
    *one_name(256, 1),
    *uncontended("read"),
    *uncontended("write"),
    Measure("one-name-16-read", "rate", "one name, 16 readers", "pairs per second", "", rate, MORE),
    Measure("one-name-16-read", "commands", "one name, 16 readers", "server commands per pair", "", commands, LESS),
    *uncontended("fair"),
    *contended("one-name-16-fair", "one fair lock, 16 tasks, no work", 16),
    *permits("permits", "semaphore, 4 permits (RPermitExpirableSemaphore)"),
    *permits("counter", "semaphore, 4 permits (RSemaphore)"),
    *(
        Measure(f"latch-{n}", f"p{p}", f"a latch, {n:,} waiter{'s'[:n > 1]} in 4 processes: last count-down to last wake-up", of, "ms",
                hand_over(p), LESS, pooled=True)
        for n in (1, 1000) for p, of in ((50, "p50"), (99, "p99 of all rounds"))
    ),
    *handed("one process", "hand-over-inside"),
    *handed("two processes", "hand-over-between"),
    Measure("held", "bytes", "10,000 locks held and renewed", "bytes per lock", "", lambda figures: figures["bytes"], LESS),
    Measure("own-names-1-three", "p50", "three servers, uncontended", "p50 of lock + unlock", "µs", micros("p50"), LESS),
    *contended("one-name-16-three", "three servers, one name, 16 tasks, no work", 16)[:2],
    Measure("own-names-1-frozen", "p50", "three servers, one of them frozen", "p50 of lock + unlock", "µs", micros("p50"), LESS),
]
