"""One run of a program, in one process or in several that talk through us. Always ends in time."""

import json
import queue
import subprocess
import tempfile
import threading
import time


class Failure(Exception):
    """The program did not do what it was asked."""


class Children:
    def __init__(self, commands):
        self.lines, self.results = queue.Queue(), {}
        self.warm = 0
        self.errors = [tempfile.TemporaryFile("w+", encoding="utf-8") for _ in commands]
        self.children = [start(command, errors) for command, errors in zip(commands, self.errors)]
        for index in range(len(commands)):
            threading.Thread(target=self.read, args=(index,), daemon=True).start()

    def read(self, index):
        for line in self.children[index].stdout:
            self.lines.put((index, line.strip()))
        self.lines.put((index, None))

    def results_within(self, seconds, watch):
        """One result for each process. `watch` is told `warm` and `held`, and else called now and then with None."""
        ends, open_ends = time.monotonic() + seconds, len(self.children)
        while open_ends:
            try:
                index, line = self.lines.get(timeout=0.2)
            except queue.Empty:
                watch(None)
            else:
                open_ends -= line is None
                self.heard(index, line, watch)
            if time.monotonic() > ends:
                raise Failure(f"did not end within {seconds:.0f} s{self.complaint()}")
        if len(self.results) < len(self.children):
            raise Failure(f"ended without a result{self.complaint()}")
        return [self.results[index] for index in range(len(self.children))]

    def heard(self, index, line, watch):
        if line is None:
            if index not in self.results:
                raise Failure(f"ended without a result{self.complaint()}")
        elif line.startswith("{"):
            self.results[index] = figures(line)
        elif line == "warm":
            self.warm += 1
            if self.warm == len(self.children):
                watch("warm")
                for child in range(len(self.children)):
                    self.tell(child, "go")
        elif line == "held":
            watch("held")
        elif len(self.children) > 1:
            for other in range(len(self.children)):
                if other != index:
                    self.tell(other, line)
        else:
            raise Failure(f"said {line[:120]}")

    def tell(self, index, line):
        try:
            self.children[index].stdin.write(line + "\n")
            self.children[index].stdin.flush()
        except OSError:
            pass  # it has ended, which is noticed by its end of output

    def complaint(self):
        """What the programs said of it."""
        said = []
        for errors in self.errors:
            errors.seek(0)
            said += errors.read(2000).strip().splitlines()[:1]
        return f": {said[0][:120]}" if said else ""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for child in self.children:
            child.kill()
            child.wait()


def figures(line):
    try:
        return json.loads(line)
    except ValueError:
        raise Failure(f"said {line[:120]}") from None


def start(command, errors):
    pipe = subprocess.PIPE
    return subprocess.Popen([str(word) for word in command], stdin=pipe, stdout=pipe, stderr=errors, text=True)
