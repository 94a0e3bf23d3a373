"""The picture: a panel for each question, a line for each program."""

import math
import statistics
from dataclasses import dataclass
from html import escape
from typing import Callable

from measures import commands, hand_over, micros, number, quantile, rate, share

OURS = "leasehold"
WIDTH, MARGIN, GAP = 920, 24, 36
HEAD, LINE, FOOT = 50, 22, 22  # of a panel
LABEL, VALUE = 122, 92  # beside the plot: names, and figures
PANEL = (WIDTH - 2 * MARGIN - GAP) // 2
INK, SOFT, GRID, OTHERS, ACCENT = "#1f2328", "#656d76", "#e3e6ea", "#9aa5b1", "#c2410c"


@dataclass
class Panel:
    title: str
    hint: str
    run: str
    values: Callable  # of the figures of all rounds: one or two values, the second no less than the first
    log: bool = False


def medians(*values):
    return lambda rounds: [statistics.median(value(figures) for figures in rounds) for value in values]


def times(rounds):
    """As in the table: one round has too few for the second."""
    together = sorted(sum((figures["times"] for figures in rounds), []))
    return [medians(hand_over(50))(rounds)[0], quantile(together, 99) / 1e6]


PANELS = [
    Panel("Lock and unlock, nobody else wants it", "µs, p50 to p99; less is better", "own-names-1",
          medians(micros("p50"), micros("p99")), log=True),
    Panel("256 tasks, a name each", "pairs a second; more is better", "own-names-256", medians(rate)),
    Panel("Release to next holder, one process", "ms, p50 to p99; less is better", "hand-over-inside", times, log=True),
    Panel("Release to next holder, two processes", "ms, p50 to p99; less is better", "hand-over-between", times, log=True),
    Panel("16 tasks want one name, no work", "turns a second; more is better", "one-name-16-0ms", medians(rate)),
    Panel("16 tasks want one name, 1 ms of work", "turns a second, 1,000 at best; more is better", "one-name-16-1ms",
          medians(rate)),
    Panel("Who gets the turns: 16 tasks, 1 ms of work", "least to most served task in fair shares; 1 is fair",
          "one-name-16-1ms", medians(share("least", 16), share("most", 16))),
    Panel("What a turn costs the server: 16 tasks, 1 ms", "commands, those of scripts included; less is better",
          "one-name-16-1ms", medians(commands)),
]


def plot(results, programs):
    panels = [panel for panel in PANELS if panel.run in results]
    height = HEAD + LINE * len(programs) + FOOT
    total = 2 * MARGIN + height * math.ceil(len(panels) / 2)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {total}" width="{WIDTH}" height="{total}" '
        'font-family="system-ui, -apple-system, Segoe UI, Roboto, Helvetica, Arial, DejaVu Sans, sans-serif">',
        f'<rect width="{WIDTH}" height="{total}" rx="8" fill="#ffffff"/>',
    ]
    for at, panel in enumerate(panels):
        x, y = MARGIN + at % 2 * (PANEL + GAP), MARGIN + at // 2 * height
        parts += draw(panel, results[panel.run], programs, x, y)
    return "\n".join([*parts, "</svg>"]) + "\n"


def draw(panel, outcomes, programs, x, y):
    rows = {program.name: row(panel, outcomes[program.name]) for program in programs}
    axis = Axis(panel, [value for values in rows.values() for value in values], x + LABEL, PANEL - LABEL - VALUE)
    yield text(x, y + 14, panel.title, 14, INK, weight=600)
    yield text(x, y + 31, panel.hint, 11.5, SOFT)
    bottom = y + HEAD + LINE * len(programs) - 6
    for value in axis.ticks():
        at = axis.at(value)
        yield f'<line x1="{at:.1f}" y1="{y + HEAD - 10}" x2="{at:.1f}" y2="{bottom}" stroke="{GRID}"/>'
        yield text(at, bottom + 13, tick(value), 10, SOFT, anchor="middle")
    for n, program in enumerate(programs):
        yield from line(axis, program, rows[program.name], x, y + HEAD + LINE * n)


def row(panel, outcomes):
    """Nothing where all rounds failed."""
    rounds = [outcome for outcome in outcomes if isinstance(outcome, dict)]
    return panel.values(rounds) if rounds else []


def line(axis, program, values, x, y):
    """A name, a mark, a figure."""
    ours = program.name == OURS
    color, weight = (ACCENT, 600) if ours else (OTHERS, 400)
    yield text(x, y + 6, program.label, 12, ACCENT if ours else INK, weight=weight)
    if not values:
        yield text(axis.left, y + 6, "failed", 12, SOFT)
        return
    ends = [axis.at(value) for value in values]
    if len(ends) == 1:
        yield f'<rect x="{axis.left}" y="{y - 4}" width="{max(ends[0] - axis.left, 1):.1f}" height="12" rx="1.5" fill="{color}"/>'
    else:
        yield f'<line x1="{ends[0]:.1f}" y1="{y + 2}" x2="{ends[1]:.1f}" y2="{y + 2}" stroke="{color}" stroke-width="3"/>'
        yield f'<circle cx="{ends[0]:.1f}" cy="{y + 2}" r="5" fill="{color}"/>'
        yield f'<circle cx="{ends[1]:.1f}" cy="{y + 2}" r="3.5" fill="#ffffff" stroke="{color}" stroke-width="2"/>'
    figure = " – ".join(number(value) for value in values)
    yield text(x + PANEL, y + 6, figure, 11.5, ACCENT if ours else INK, weight=weight, anchor="end")


class Axis:
    def __init__(self, panel, values, left, width):
        self.left, self.width, self.log = left, width, panel.log
        positive = [value for value in values if value > 0] or [1]
        self.low = 10 ** math.floor(math.log10(min(positive))) if panel.log else 0
        self.high = max(positive) * (1.15 if panel.log else 1.03)

    def at(self, value):
        if self.log:
            part = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            part = value / self.high
        return self.left + part * self.width

    def ticks(self):
        if self.log:
            return [10**n for n in range(round(math.log10(self.low)), math.floor(math.log10(self.high)) + 1)]
        step = 10 ** math.floor(math.log10(self.high))
        step = next(step * part for part in (0.2, 0.5, 1, 2) if self.high / (step * part) <= 5)
        return [step * n for n in range(int(self.high / step) + 1)]


def tick(value):
    if value >= 10_000:
        return f"{value / 1000:g}k"
    return f"{value:g}"


def text(x, y, words, size, color, weight=400, anchor="start"):
    style = f'font-size="{size}" fill="{color}" font-weight="{weight}" text-anchor="{anchor}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(words)}</text>'
