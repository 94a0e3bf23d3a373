"""A redis-server of one's own, and a client for it that is just enough."""

import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

# What clients say to set up a connection, and what this driver says itself: no part of a turn.
NOT_A_TURN = {"auth", "flushall", "hello", "info", "script|load", "select"}


class Server:
    def __init__(self, program):
        self.dir = tempfile.mkdtemp()
        self.process = None
        for _ in range(5):  # between finding a free port and using it somebody else may take it
            self.port = free_port()
            words = [program, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", self.dir]
            words += ["--save", "", "--appendonly", "no", "--daemonize", "no"]
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

    def end(self):
        if self.process and self.process.poll() is None:
            self.process.terminate()
            self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()
        shutil.rmtree(self.dir, ignore_errors=True)


def free_port():
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        return asked.getsockname()[1]
