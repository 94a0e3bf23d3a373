"""What is run, and how one run goes."""

import threading
import time
from dataclasses import dataclass

from children import Children, Failure
from server import spread_name

HELD = 10_000
# Seconds for the start of a program, and for all waiters to get their turn at the end.
GRACE = 30
THREE = "three"
NAMES = {THREE: spread_name("peers:load")}
# Seconds after the start of a program until a server is frozen, and until that counts.
FREEZES, COUNTS = 1, 1


@dataclass
class Run:
    name: str
    section: str
    tasks: int = 1
    work_ms: int = 0
    longer: float = 1  # times the seconds asked for
    processes: int = 1
    kind: str = "lock"  # one of a program's kinds; `three`: a lock over three servers
    frozen: bool = False  # one of the three, as soon as the program runs


RUNS = [
    *(Run(f"own-names-{tasks}", "own-names", tasks) for tasks in (1, 16, 256)),
    *(Run(f"one-name-{tasks}-{work}ms", "one-name", tasks, work) for work in (0, 1) for tasks in (16, 256)),
    *(Run(f"own-names-1-{kind}", "own-names", kind=kind) for kind in ("read", "write", "fair")),
    *(Run(f"one-name-16-{kind}", "one-name", 16, kind=kind) for kind in ("read", "fair")),
    Run("hand-over-inside", "hand-over", tasks=2, longer=1.5),
    Run("hand-over-between", "half", longer=1.5, processes=2),
    *(Run(f"own-names-1-{kind}", "own-names", kind=kind) for kind in ("permits", "counter")),
    *(Run(f"one-name-16-{kind}", "one-name", 16, kind=kind) for kind in ("permits", "counter")),
    *(Run(f"latch-{waiters}", "latch", waiters, kind="latch", processes=4, longer=3) for waiters in (1, 1000)),
    Run("held", "held", tasks=HELD),
    Run("own-names-1-three", "own-names", kind=THREE),
    Run("one-name-16-three", "one-name", 16, kind=THREE),
    Run("own-names-1-frozen", "own-names", longer=3, kind=THREE, frozen=True),
]


def once(run, program, server, seconds):
    """Figures by name. Raises Failure."""
    server.start_over()
    if run.section == "held":
        return held(run, program, server)
    seconds *= run.longer
    warm_up = program.warm_up + (FREEZES + COUNTS if run.frozen else 0)
    options = ["--seconds", seconds, "--warm-up", warm_up]
    limit = program.jit + warm_up + seconds + GRACE

    def watch(event):
        if event == "warm":
            server.start_over()

    freezes = threading.Timer(FREEZES, server.freeze) if run.frozen else None
    try:
        if freezes:
            freezes.start()
        figures = start(run, program, server, options, limit, watch)
    finally:
        if freezes:
            freezes.cancel()
            freezes.join()
            server.thaw()
    figures["commands"] = server.commands()
    return figures


def start(run, program, server, options, limit, watch):
    words = ["--url", server.url, "--work-ms", run.work_ms, "--name", NAMES.get(run.kind, "peers:load"), *options]
    words += ["--jit", program.jit] if program.jit else []
    words += ["--kind", run.kind] if run.kind not in ("lock", THREE) else []
    command = [*program.command, run.section, *words]
    commands = [[*command, "--tasks", tasks, "--first", "false" if n else "true"] for n, tasks in enumerate(shares(run))]
    with Children(commands) as children:
        results = children.results_within(limit, watch)
    figures = results[0]
    if "times" in figures:
        figures["times"] = sum((result["times"] for result in results), [])
        check_times(figures["times"])
    elif figures.get("turns") == 0:
        raise Failure(f"no turn at all{children.complaint()}")
    return figures


def shares(run):
    """How many tasks each process has. Of one waiter, the first process has none: it counts down."""
    if run.section != "latch":
        return [run.tasks] * run.processes
    return [run.tasks * (n + 1) // run.processes - run.tasks * n // run.processes for n in range(run.processes)]


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

