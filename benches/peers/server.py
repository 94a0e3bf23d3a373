"""Redis servers of one's own, and a client for them that is just enough."""

import binascii
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

# What clients say to set up a connection, and what this driver says itself: no part of a turn.
NOT_A_TURN = {"auth", "flushall", "hello", "info", "script|load", "select"}


class Server:
    def __init__(self, program, *more):
        self.dir = tempfile.mkdtemp()
        self.process = None
        for _ in range(5):  # between finding a free port and using it somebody else may take it
            self.port = free_port()
            words = [program, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", self.dir]
            words += ["--save", "", "--appendonly", "no", "--daemonize", "no", *more]
            log = open(Path(self.dir, "log"), "w", encoding="utf-8")
            self.process = subprocess.Popen(words, stdout=log, stderr=log)
            if self.answers():
                return
            self.end()
        raise SystemExit("no private server could be started")

    url = property(lambda self: f"redis://127.0.0.1:{self.port}")

    def answers(self):
        for _ in range(200):
            if self.process.poll() is not None:
                return False
            try:
                self.stream = socket.create_connection(("127.0.0.1", self.port), timeout=10).makefile("rwb")
                return self.ask("PING") == "PONG"
            except OSError:
                time.sleep(0.05)
        return False

    def ask(self, *words):
        words = [str(word).encode() for word in words]
        self.stream.write(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words))
        self.stream.flush()
        return self.reply()

    def reply(self):
        kind, rest = (line := self.stream.readline())[:1], line[1:].strip()
        if kind == b"-":
            raise RuntimeError(rest.decode())
        if kind == b":":
            return int(rest)
        if kind == b"$" and int(rest) >= 0:
            return self.stream.read(int(rest) + 2)[:-2].decode()
        return None if kind == b"$" else rest.decode()

    def version(self):
        said = dict(line.split(":", 1) for line in self.ask("INFO", "server").splitlines() if ":" in line)
        return f"Valkey {said['valkey_version']}" if "valkey_version" in said else f"Redis {said['redis_version']}"

    def start_over(self):
        self.ask("FLUSHALL")
        self.ask("CONFIG", "RESETSTAT")

    def commands(self):
        """How many since the last reset, those of scripts included."""
        count = 0
        for line in self.ask("INFO", "commandstats").splitlines():
            command, _, figures = line.removeprefix("cmdstat_").partition(":calls=")
            if figures and command not in NOT_A_TURN and not command.startswith(("client|", "command", "config|")):
                count += int(figures.split(",")[0])
        return count

    def freeze(self):
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self):
        self.process.send_signal(signal.SIGCONT)

    def end(self):
        if self.process and self.process.poll() is None:
            self.process.terminate()
            self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()
        shutil.rmtree(self.dir, ignore_errors=True)


SLOTS = 16_384


class Three:
    """Three servers that do not know of each other, or three masters of a cluster."""

    def __init__(self, program, cluster):
        more = ["--cluster-enabled", "yes", "--cluster-require-full-coverage", "no"] if cluster else []
        self.servers = [Server(program, *more) for _ in range(3)]
        if cluster:
            self.join()

    url = property(lambda self: ",".join(server.url for server in self.servers))

    def join(self):
        for n, server in enumerate(self.servers):
            server.ask("CLUSTER", "ADDSLOTSRANGE", n * SLOTS // 3, (n + 1) * SLOTS // 3 - 1)
            server.ask("CLUSTER", "SET-CONFIG-EPOCH", n + 1)
            self.servers[0].ask("CLUSTER", "MEET", "127.0.0.1", server.port)
        for server in self.servers:
            while server.ask("CLUSTER", "INFO").count("cluster_known_nodes:3\r\ncluster_size:3") < 1:
                time.sleep(0.05)

    def start_over(self):
        for server in self.servers:
            server.start_over()

    def commands(self):
        return sum(server.commands() for server in self.servers)

    def freeze(self):
        self.servers[-1].freeze()

    def thaw(self):
        self.servers[-1].thaw()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.thaw()
        for server in self.servers:
            server.__exit__()


def spread_name(start):
    """A name of which rueidislock's three keys are on three masters, and those of the first task's own name, too."""
    names = (f"{start}{n}" for n in range(100_000))
    return next(name for name in names if is_spread(name) and is_spread(f"{name}-0"))


def is_spread(name):
    slots = [binascii.crc_hqx(f"rueidislock:{key}:{name}".encode(), 0) % SLOTS for key in range(3)]
    return len({slot * 3 // SLOTS for slot in slots}) == 3


def free_port():
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        return asked.getsockname()[1]
