"""What is run, and how one run goes."""

import time
from dataclasses import dataclass

from children import Children, Failure

HELD = 10_000
# Seconds for the start of a program, and for all waiters to get their turn at the end.
GRACE = 30


@dataclass
class Run:
    name: str
    section: str
    tasks: int = 1
    work_ms: int = 0
    longer: float = 1  # times the seconds asked for
    processes: int = 1
    kind: str = "lock"  # one of a program's kinds


RUNS = [
    *(Run(f"own-names-{tasks}", "own-names", tasks) for tasks in (1, 16, 256)),
    *(Run(f"one-name-{tasks}-{work}ms", "one-name", tasks, work) for work in (0, 1) for tasks in (16, 256)),
    *(Run(f"own-names-1-{kind}", "own-names", kind=kind) for kind in ("read", "write", "fair")),
    *(Run(f"one-name-16-{kind}", "one-name", 16, kind=kind) for kind in ("read", "fair")),
    Run("hand-over-inside", "hand-over", tasks=2, longer=1.5),
    Run("hand-over-between", "half", longer=1.5, processes=2),
    Run("held", "held", tasks=HELD),
]


def once(run, program, server, seconds):
    """Figures by name. Raises Failure."""
    server.start_over()
    if run.section == "held":
        return held(run, program, server)
    seconds *= run.longer
    options = ["--seconds", seconds, "--warm-up", program.warm_up]
    limit = program.jit + program.warm_up + seconds + GRACE

    def watch(event):
        if event == "warm":
            server.start_over()

    figures = start(run, program, server, options, limit, watch)
    figures["commands"] = server.commands()
    return figures


def start(run, program, server, options, limit, watch):
    words = ["--url", server.url, "--tasks", run.tasks, "--work-ms", run.work_ms, "--name", "peers:load", *options]
    words += ["--jit", program.jit] if program.jit else []
    words += ["--kind", run.kind] if run.kind != "lock" else []
    command = [*program.command, run.section, *words]
    commands = [command] if run.processes == 1 else [[*command, "--first", first] for first in ("true", "false")]
    with Children(commands) as children:
        results = children.results_within(limit, watch)
    figures = results[0]
    if "times" in figures:
        figures["times"] = sum((result["times"] for result in results), [])
        check_times(figures["times"])
    elif figures.get("turns") == 0:
        raise Failure(f"no turn at all{children.complaint()}")
    return figures


def check_times(times):
    if not times:
        raise Failure("no hand-over at all")
    times.sort()


def held(run, program, server):
    """Memory, and what the server says: whether all are held to the end, and whether they are renewed."""
    seconds = program.renewed * 1.1 + 1
    seen = Watch(server, seconds)
    figures = start(run, program, server, ["--seconds", seconds], program.jit + seconds + 2 * GRACE, seen)
    if seen.least < HELD:
        raise Failure(f"only {seen.least} of {HELD} were held to the end")
    if program.renewed and not seen.renewed:
        raise Failure("no renewal was seen")
    figures["renewed"] = seen.renewed
    return figures


class Watch:
    """Looks at the server while locks are held."""

    def __init__(self, server, seconds):
        self.server, self.seconds = server, seconds
        self.ends = self.key = None
        self.left, self.least, self.renewed = 0, HELD, False

    def __call__(self, event):
        if event == "warm":
            self.server.start_over()
        elif event == "held":
            self.ends = time.monotonic() + self.seconds - 0.5  # then the program may already be giving them back
            self.key = self.server.ask("RANDOMKEY")
            self.left = self.server.ask("PTTL", self.key)
        elif self.ends and time.monotonic() < self.ends:
            left = self.server.ask("PTTL", self.key)
            self.renewed |= left > self.left
            self.left, self.least = left, min(self.least, self.server.ask("DBSIZE"))

