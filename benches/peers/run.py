"""Measures leasehold beside other lock libraries: builds them, runs the same load on each in turn, and reports. See README.md."""

import argparse
import datetime
import json
import os
import platform
import signal
import subprocess
import sys
from contextlib import ExitStack

import plot
import programs
import report
import runs
import summary
from children import Failure
from server import Server, Three

LAST = programs.TARGET / "last.json"  # every figure of every round
KEPT = programs.HERE / "measured.json"  # what the docs show
DOCS = programs.ROOT / "docs"


def parse():
    names = [program.name for program in programs.PROGRAMS]
    sections = [run.name for run in runs.RUNS]
    parser = argparse.ArgumentParser(prog="scripts/bench-peers", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="number of rounds; each one runs all sections with all programs (5)")
    parser.add_argument("--held-rounds", type=int, default=3, help="how many of the rounds also measure the memory of held locks (3)")
    parser.add_argument("--seconds", type=float, default=2, help="measured seconds of each run (2)")
    only = f"run only these programs or sections: {', '.join(names + sections)}"
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help=only)
    parser.add_argument("--last", action="store_true", help="no run: report the last full run again")
    parser.add_argument("--write", action="store_true", help="write the table and the pictures to docs/, and the figures to measured.json")
    parser.add_argument("--redraw", action="store_true", help="no run: write the table and the pictures again, from measured.json")
    args = parser.parse_args()
    if unknown := set(args.only) - set(names + sections):
        parser.error(f"not the name of a program or a section: {', '.join(unknown)}")
    if args.only and (args.write or args.last or args.redraw):
        parser.error("--write, --last and --redraw need a full run: leave out --only")
    if args.redraw and (args.write or args.last):
        parser.error("--redraw reads measured.json: leave out --write and --last")
    return args


def say(text):
    print(text, file=sys.stderr, flush=True)


def chosen(all_of_them, only):
    return [one for one in all_of_them if one.name in only] or all_of_them


def measure(args):
    """Everything that a report needs."""
    programs_run, runs_run = chosen(programs.PROGRAMS, args.only), chosen(runs.RUNS, args.only)
    programs.check(programs_run)
    server_program = subprocess.run([programs.ROOT / "scripts" / "need-redis"], capture_output=True, text=True, check=True)
    programs.build(programs_run, say)
    versions = {program.name: programs.version(program) for program in programs_run}
    results = {run.name: {program.name: [] for program in programs_run if run.kind in program.kinds} for run in runs_run}
    results = {name: outcomes for name, outcomes in results.items() if outcomes}
    path = server_program.stdout.strip()
    with Server(path) as server, ExitStack() as stack:
        servers = {run.kind: lambda _: server for run in runs_run}
        if runs.THREE in servers:
            three = {cluster: stack.enter_context(Three(path, cluster)) for cluster in {one.cluster for one in programs_run}}
            servers[runs.THREE] = lambda program: three[program.cluster]
        setting = describe(args, server)
        for turn in range(args.rounds):
            for run in runs_run:
                if run.section == "held" and turn >= args.held_rounds:
                    continue
                # Nobody always comes first.
                for program in programs_run[turn % len(programs_run):] + programs_run[: turn % len(programs_run)]:
                    if run.kind in program.kinds:
                        results[run.name][program.name].append(outcome(run, program, servers[run.kind](program), args.seconds, turn))
    last = {"results": results, "versions": versions, "setting": setting}
    if not args.only:
        LAST.write_text(json.dumps(last), encoding="utf-8")
    return last


def describe(args, server):
    return {
        "date": datetime.date.today().isoformat(),
        "server": server.version(),
        "cores": len(os.sched_getaffinity(0)),
        "system": f"{platform.system()} {platform.machine()}",
        "rounds": args.rounds,
        "held_rounds": min(args.rounds, args.held_rounds),
        "seconds": args.seconds,
    }


def outcome(run, program, server, seconds, turn):
    try:
        figures = runs.once(run, program, server, seconds)
    except Failure as failure:
        say(f"round {turn + 1}, {run.name}, {program.name}: FAILED, {failure}")
        return str(failure)
    say(f"round {turn + 1}, {run.name}, {program.name}: {brief(figures)}")
    return figures


def brief(figures):
    if "times" in figures:
        return f"{len(figures['times'])} hand-overs, p50 {figures['times'][len(figures['times']) // 2] / 1e6:.2f} ms"
    return ", ".join(f"{name} {value}" for name, value in figures.items())


def main():
    args = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
    if args.redraw:
        write(summary.load(KEPT))
        return
    last = json.loads(LAST.read_text(encoding="utf-8")) if args.last else measure(args)
    whole = summary.summary(**last, origin="scripts/bench-peers")
    print(report.report(whole, programs_of(whole)))
    if args.write:
        summary.save(whole, KEPT)
        write(whole)


def programs_of(whole):
    return [program for program in programs.PROGRAMS if program.name in whole["versions"]]


def write(whole):
    programs_run = programs_of(whole)
    text, pictures = report.report(whole, programs_run), plot.pictures(whole, programs_run)
    report.write(text, DOCS / "benchmarks.md")
    for name, picture in pictures.items():
        (DOCS / name).write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
