"""The load of scripts/bench-peers for redis-py's lock, asyncio variant. `peer.py SECTION --url URL …` prints one line of
JSON with numbers only; ../README.md has the sections, which the programs in other languages share."""

import argparse
import asyncio
import gc
import json
import os
import platform
import sys
import threading
import time
from importlib.metadata import version

import redis.asyncio as redis

# As long as the other libraries' leases; by default there is none, and a crashed holder has the lock for ever.
LEASE = 30.0


class Tally:
    """What one task did."""

    def __init__(self):
        self.all_turns = self.errors = self.violations = 0
        self.times = []  # of the turns that ended within the window

    def failed(self, error):
        if self.errors == 0:
            print(error, file=sys.stderr)
        self.errors += 1


class Holders:
    """How many have the lock now."""

    count = 0


def own_names(client, args):
    """Each task has a name of its own."""
    return run(args, lambda task: (client.lock(f"{args.name}-{task}", timeout=LEASE), Holders()))


def one_name(client, args):
    """All want the same."""
    holders = Holders()
    return run(args, lambda task: (client.lock(args.name, timeout=LEASE), holders))


async def run(args, lock):
    opens = time.monotonic_ns() + int(args.warm_up * 1e9)
    window = opens, opens + int(args.seconds * 1e9)
    return report(await asyncio.gather(*(turns(*lock(task), window, args) for task in range(args.tasks))), args)


async def turns(lock, holders, window, args):
    (opens, closes), tally = window, Tally()
    while (begun := time.monotonic_ns()) < closes:
        try:
            await lock.acquire(blocking=True)
            holders.count += 1
            await asyncio.sleep(0)  # else nobody could be seen who has it too
            tally.violations += holders.count > 1
            spin(args.work_ms)
            holders.count -= 1
            await lock.release()
        except redis.RedisError as error:
            tally.failed(error)
            await asyncio.sleep(0.001)  # not the busy loop that an error at once would make
            continue
        tally.all_turns += 1
        if opens <= (now := time.monotonic_ns()) < closes:
            tally.times.append(now - begun)
    return tally


def spin(work_ms):
    """Work that is equally long in every language; their timers are not."""
    ends = time.monotonic_ns() + work_ms * 1_000_000
    while time.monotonic_ns() < ends:
        pass


def report(tallies, args):
    times = sorted(time for tally in tallies for time in tally.times)
    turns = [len(tally.times) for tally in tallies]
    return {
        "turns": len(times),
        "all_turns": sum(tally.all_turns for tally in tallies),
        "errors": sum(tally.errors for tally in tallies),
        "violations": sum(tally.violations for tally in tallies),
        "least": min(turns),
        "most": max(turns),
        "seconds": args.seconds,
        "p50": times[len(times) * 50 // 100] if times else 0,
        "p99": times[len(times) * 99 // 100] if times else 0,
    }


class Link:
    """To the other side: lines, in memory or through the standard streams."""

    def __init__(self, send):
        self.inbox, self.send = asyncio.Queue(), send

    async def hear(self, wanted):
        line = await self.inbox.get()
        if line != wanted:
            raise RuntimeError(f"{line} instead of {wanted}")


async def hand_over(client, args):
    """From release() called to acquire() returned by one who was already waiting. Two sides take turns; neither asks again
    before the other has it, so that a waiter who is asleep when the lock is released is not passed over."""
    one, other = Link(None), Link(None)
    one.send, other.send = other.inbox.put_nowait, one.inbox.put_nowait
    sides = side(client, args, one, True), side(client, args, other, False)
    return {"times": sum(await asyncio.gather(*sides), [])}


async def half(client, args):
    """One side; whoever started us carries the lines to the other."""
    link, loop = Link(lambda line: print(line, flush=True)), asyncio.get_running_loop()

    def read():
        for line in sys.stdin:
            loop.call_soon_threadsafe(link.inbox.put_nowait, line.strip())

    threading.Thread(target=read, daemon=True).start()
    return {"times": await side(client, args, link, args.first)}


async def side(client, args, link, first):
    opens = time.monotonic() + args.warm_up
    lock, times, turn, last = client.lock(args.name, timeout=LEASE), [], 0, False
    if first:
        await lock.acquire(blocking=True)
        link.send("had")
    else:
        await link.hear("had")
    while not last:
        if (turn % 2 == 0) == first:
            last = await give(lock, link, turn, opens + args.seconds)
        else:
            took, last = await take(lock, link)
            if time.monotonic() >= opens:
                times.append(took)
        turn += 1
    return times


async def give(lock, link, turn, closes):
    """The holder: waits until the other asks, and a while. Whether it was the last time."""
    await link.hear("ask")
    await asyncio.sleep(patience(turn))
    word = "left" if time.monotonic() < closes else "last"
    left = time.monotonic_ns()
    await lock.release()
    link.send(f"{word} {left}")
    await link.hear("had")
    return word == "last"


async def take(lock, link):
    """The waiter: how long it took from the release on, and whether it was the last time."""
    link.send("ask")
    await lock.acquire(blocking=True)
    had = time.monotonic_ns()
    link.send("had")
    word, left = (await link.inbox.get()).split()
    if word == "last":
        await lock.release()
    return had - int(left), word == "last"


def patience(turn):
    """From 3 to 103 ms, evenly spread: the release must not keep step with somebody's polling."""
    return 0.003 + turn * 0.61803398875 % 1 * 0.1


async def held(client, args):
    """Memory for each held lock. Says `held` when all are, and keeps them for the seconds asked for."""
    async with client.lock("warm", timeout=LEASE):
        pass
    locks, before = [], resident()
    for n in range(args.tasks):
        locks.append(client.lock(f"{args.name}:{n:06}", timeout=LEASE))
        await locks[-1].acquire(blocking=True)
    print("held", flush=True)
    await asyncio.sleep(args.seconds)
    return {"bytes": (resident() - before) // len(locks)}


def resident():
    """Resident memory of this process in bytes, without garbage."""
    gc.collect()
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("section", choices=["version", *SECTIONS])
    parser.add_argument("--url")
    parser.add_argument("--name", default="peers")
    parser.add_argument("--tasks", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1)
    parser.add_argument("--warm-up", type=float, default=0)
    parser.add_argument("--work-ms", type=int, default=0)
    parser.add_argument("--first", type=lambda word: word == "true", default=False)
    return parser.parse_args()


SECTIONS = {"own-names": own_names, "one-name": one_name, "hand-over": hand_over, "half": half, "held": held}


async def main():
    args = parse()
    if args.section == "version":
        print(f"redis-py {version('redis')}, hiredis {version('hiredis')}, Python {platform.python_version()}")
        return
    # The default pool has at most a hundred connections and fails when one more is asked for. A connection for each
    # task was faster than making the tasks wait for one (BlockingConnectionPool).
    async with redis.Redis.from_url(args.url, max_connections=max(100, args.tasks)) as client:
        print(json.dumps(await SECTIONS[args.section](client, args)))


asyncio.run(main())
