"""The pictures: a panel for each question, a line for each program."""

import math
import textwrap
from dataclasses import dataclass
from html import escape

from measures import number
from summary import OURS, conditions, first_in, not_first

WIDTH, MARGIN, GAP = 920, 24, 36
LINE, FOOT = 22, 26  # of a panel: a program, the figures of the axis
LABEL = 122  # for the names
SMALL = 11
# In the light, and in the dark. What does not know the one that is asked for shows the first.
PALETTE = {
    "paper": ("#ffffff", "#0d1117"),
    "ink": ("#1f2328", "#e6edf3"),
    "soft": ("#59636e", "#9198a1"),
    "grid": ("#d1d9e0", "#3d444d"),
    "minor": ("#eceff2", "#20262e"),
    "others": ("#8b96a2", "#768390"),
    "ours": ("#c2410c", "#fb8c4a"),
}


@dataclass
class Panel:
    title: str
    load: str
    unit: str
    better: str
    rows: list  # of the table: one, or two
    marks: tuple = ()  # what the two are
    log: bool = False

    @property
    def scale(self):
        return f"{self.unit}{', logarithmic' if self.log else ''}; {self.better}"


HALVES = ("p50", "p99")
LESS, MORE = "less is better", "more is better"

BETWEEN = Panel("Release to next holder", "two processes", "ms", LESS, ["hand-over-between p50", "hand-over-between p99"],
                HALVES, log=True)
SHARES = Panel("Who gets the turns", "16 tasks, 1 ms of work", "fair shares of one name", "1 is fair",
               ["one-name-16-1ms least", "one-name-16-1ms most"], ("fewest turns", "most turns"))
COST = Panel("Server commands per turn", "one name, 1 ms of work", "with those in scripts", LESS,
             ["one-name-16-1ms commands", "one-name-256-1ms commands"], ("16 tasks", "256 tasks"))

ALL = [
    Panel("Lock and unlock", "uncontended", "µs", LESS, ["own-names-1 p50", "own-names-1 p99"], HALVES, log=True),
    Panel("Lock and unlock", "256 tasks, one name per task", "pairs per second", MORE, ["own-names-256 rate"]),
    Panel("Release to next holder", "one process", "ms", LESS, ["hand-over-inside p50", "hand-over-inside p99"], HALVES,
          log=True),
    BETWEEN,
    Panel("One name", "16 tasks, no work", "turns per second", MORE, ["one-name-16-0ms rate"]),
    Panel("One name", "16 tasks, 1 ms of work", "turns per second, 1,000 at best", MORE, ["one-name-16-1ms rate"]),
    SHARES,
    COST,
]


def pictures(whole, programs):
    """By file."""
    return {"peers.svg": all_of_it(whole, programs)}


def all_of_it(whole, programs):
    """Two panels beside each other, each with names of its own."""
    panels = [panel for panel in ALL if set(panel.rows) <= set(whole["rows"])]
    width, head = (WIDTH - 2 * MARGIN - GAP) // 2, 50
    height = head + LINE * len(programs) + FOOT
    parts, top = [], MARGIN + 58
    for at, panel in enumerate(panels):
        x, y = MARGIN + at % 2 * (width + GAP), top + at // 2 * height
        parts += [
            text(x, y + 14, f"{panel.title}, {panel.load}", 14, "ink", weight=600),
            *marks(panel, x, y + 31, panel.scale),
            *names(programs, x, y + head),
            *plot(panel, whole["rows"], programs, x + LABEL, y + head, width - LABEL),
        ]
    bottom = top + height * math.ceil(len(panels) / 2)
    return picture([*heading(programs), *legend(MARGIN + 38), *parts], bottom + 4, panels, whole, programs)


def picture(parts, bottom, panels, whole, programs):
    """With a foot that says what was measured, and where leasehold is not first."""
    rows = whole["rows"]
    shown = {key for panel in panels for key in panel.rows}
    here = {key: row for key, row in rows.items() if key in shown}
    elsewhere = {key: row for key, row in rows.items() if key not in shown}
    # A version stays beside its name.
    versions = [whole["versions"][program.name].replace(" ", "\N{NO-BREAK SPACE}") for program in programs]
    foot = [
        (
            f"{OURS} is first in {first_in(rows)} of {len(rows)} measured rows. Not first in this picture: "
            f"{'; '.join(not_first(here)) or 'nothing'}. Not first elsewhere: {'; '.join(not_first(elsewhere)) or 'nothing'}.",
            "ink",
        ),
        (f"Medians of the rounds; the p99 of a release is over all rounds. {conditions(whole['setting'])}", "soft"),
        (" · ".join(version.replace(",\N{NO-BREAK SPACE}", ", ") for version in versions) + ".", "soft"),
    ]
    y, lines = bottom + 12, []
    for part, color in foot:
        for words in textwrap.wrap(part, int((WIDTH - 2 * MARGIN) / (0.53 * SMALL)), break_on_hyphens=False):
            lines.append(text(MARGIN, y, words, SMALL, color))
            y += 15
        y += 5
    total = y - 5 - 15 + MARGIN
    dark = "".join(f".f-{name}{{fill:{dark}}}.s-{name}{{stroke:{dark}}}" for name, (_, dark) in PALETTE.items())
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {total}" width="{WIDTH}" height="{total}" role="img" '
        'font-family="system-ui, -apple-system, Segoe UI, Roboto, Helvetica, Arial, DejaVu Sans, sans-serif">',
        f"<title>{title(programs)}</title>",
        f"<style>@media (prefers-color-scheme: dark){{{dark}}}</style>",
        f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{total - 1}" rx="8" {paint("paper", "grid")}/>',
        *parts,
        *lines,
        "</svg>",
    ]) + "\n"


def title(programs):
    return f"{OURS} beside {len(programs) - 1} other lock libraries"


def heading(programs):
    return [text(MARGIN, MARGIN + 12, title(programs), 17, "ink", weight=600)]


def legend(y):
    """What a row may show."""
    x = MARGIN
    yield rect(x, y - 9, 40, "others")
    yield from whisker(x + 34, x + 46, y - 3)
    x += 56
    yield text(x, y + 1, "median of the rounds, with the least and the greatest value", SMALL, "soft")
    x += 375
    yield from dots([x + 5, x + 35], y - 3, "others")
    yield text(x + 46, y + 1, "two figures, named below each title", SMALL, "soft")


def marks(panel, x, y, hint=""):
    """What the dots are, and of what."""
    if panel.marks:
        for words, draw in zip(panel.marks, (dot, ring)):
            yield draw(x + 5, y - 4, "others")
            yield text(x + 14, y, words, SMALL, "soft")
            x += 14 + 6.6 * len(words) + 12
    yield text(x, y, hint, SMALL, "soft")


def names(programs, x, y):
    for n, program in enumerate(programs):
        ours = program.name == OURS
        yield text(x, y + LINE * n + 6, program.label, 12, "ours" if ours else "ink", weight=600 if ours else 400)


def plot(panel, rows, programs, x, y, width):
    cells = [[rows[key][program.name] for key in panel.rows] for program in programs]
    figures = [" – ".join(number(cell["median"]) for cell in row if "median" in cell) for row in cells]
    beside = 12 + 6.8 * max(map(len, figures))
    axis = Axis(panel, [value for row in cells for value in ends(row)], x, width - beside)
    bottom = y + LINE * len(programs) - 6
    for value in axis.minor():
        yield grid(axis.at(value), y - 8, bottom, "minor")
    for value in axis.major():
        yield grid(axis.at(value), y - 8, bottom + 4, "grid")
        yield text(axis.at(value), bottom + 15, tick(value), 10, "soft", anchor="middle")
    for n, (program, row, figure) in enumerate(zip(programs, cells, figures)):
        color, weight = ("ours", 600) if program.name == OURS else ("others", 400)
        middle = y + LINE * n + 2
        if bad := trouble(row):
            yield text(x, middle + 4, bad, 12, "soft")
            continue
        yield from bar(axis, row[0], middle, color) if len(row) == 1 else dots([at(axis, cell) for cell in row], middle, color)
        yield text(x + width, middle + 4, figure, 11.5, "ours" if program.name == OURS else "ink", weight=weight, anchor="end")


def ends(row):
    """What is drawn of it."""
    shown = ("least", "median", "most") if len(row) == 1 else ("median",)
    return [cell[name] for cell in row for name in shown if name in cell]


def at(axis, cell):
    return axis.at(cell["median"])


def trouble(row):
    if any("median" not in cell for cell in row):
        return "failed"
    return "two holders at once" if any("violations" in cell for cell in row) else ""


def bar(axis, cell, y, color):
    yield rect(axis.left, y - 6, max(at(axis, cell) - axis.left, 1), color)
    if "least" in cell:
        yield from whisker(axis.at(cell["least"]), axis.at(cell["most"]), y)


def whisker(left, right, y):
    yield f'<path d="M{left:.1f} {y}H{right:.1f}M{left:.1f} {y - 3}v6M{right:.1f} {y - 3}v6" fill="none" {paint(stroke="ink")}/>'


def dots(xs, y, color):
    yield f'<line x1="{xs[0]:.1f}" y1="{y}" x2="{xs[1]:.1f}" y2="{y}" {paint(stroke=color)} stroke-width="3"/>'
    yield dot(xs[0], y, color)
    yield ring(xs[1], y, color)


def dot(x, y, color):
    return f'<circle cx="{x:.1f}" cy="{y}" r="5" {paint(color)}/>'


def ring(x, y, color):
    return f'<circle cx="{x:.1f}" cy="{y}" r="3.5" {paint("paper", color)} stroke-width="2"/>'


def rect(x, y, width, color):
    return f'<rect x="{x}" y="{y}" width="{width:.1f}" height="12" rx="1.5" {paint(color)}/>'


def grid(x, top, bottom, color):
    return f'<line x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{bottom}" {paint(stroke=color)}/>'


class Axis:
    """From 0, or from the step below the least to the step above the most."""

    def __init__(self, panel, values, left, width):
        self.left, self.width, self.log = left, width, panel.log
        positive = [value for value in values if value > 0] or [1]
        if self.log:
            steps = steps_between(min(positive) / 10, max(positive) * 10, (1, 2, 5))
            self.low = max(step for step in steps if step <= min(positive))
            self.high = min(step for step in steps if step >= max(positive))
        else:
            self.low, self.high = 0, max(positive) * 1.03

    def at(self, value):
        if self.log:
            part = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            part = value / self.high
        return self.left + part * self.width

    def major(self):
        if self.log:
            return steps_between(self.low, self.high, (1, 2, 5) if self.high / self.low <= 20 else (1, 3))
        step = 10 ** math.floor(math.log10(self.high))
        step = next(step * part for part in (0.2, 0.5, 1, 2) if self.high / (step * part) <= 6)
        return [step * n for n in range(int(self.high / step) + 1)]

    def minor(self):
        return steps_between(self.low, self.high, range(1, 10)) if self.log else []


def steps_between(low, high, parts):
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = [float(f"{part}e{decade}") for decade in decades for part in parts]
    return [step for step in steps if low <= step <= high]


def tick(value):
    """All its digits: 1.5 must not read 2."""
    return f"{value:,.0f}" if value == round(value) else f"{value:g}"


def text(x, y, words, size, color, weight=400, anchor="start"):
    style = f'font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" {paint(color)}'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(words)}</text>'


def paint(fill=None, stroke=None):
    """The colours of the light beside the classes, for all that reads no style."""
    chosen = [(kind, name) for kind, name in (("fill", fill), ("stroke", stroke)) if name]
    classes = " ".join(f"{kind[0]}-{name}" for kind, name in chosen)
    return " ".join([f'class="{classes}"', *(f'{kind}="{PALETTE[name][0]}"' for kind, name in chosen)])
