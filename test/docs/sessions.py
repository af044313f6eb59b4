"""Running examples: psql sessions, Python, and programs of other languages."""
import contextlib
import io
import os
import re
import selectors
import subprocess
import tempfile
import time

import programs

LIMIT = 120                     # seconds until an example counts as hanging

PSQL = ["psql", "--no-psqlrc", "--quiet", "--pset=pager=off"]

VOLATILE = (
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"), "UUID"),
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?[+-]\d\d(:\d\d)?"), "TIME"),
    (re.compile(r"\b\d\d:\d\d:\d\d\.\d+"), "DURATION"),
    (re.compile(r"-{2,}"), "--"),
    (re.compile(r" +"), " "),
)


def normalized(text):
    """What must be the same each time: not tokens, moments or column widths."""
    for pattern, name in VOLATILE:
        text = pattern.sub(name, text)
    return [line.strip() for line in text.strip("\n").split("\n")]


class Hanging(Exception):
    """An example did not come to its end."""


class NotHere(Exception):
    """An example cannot be run: the reason is its text."""


class Psql:
    """One psql session; what it prints and its errors come in one stream."""

    def __init__(self, directory):
        self.process = subprocess.Popen(
            PSQL, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, cwd=directory)
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.process.stdout, selectors.EVENT_READ)
        self.examples = 0

    def run(self, text):
        self.examples += 1
        mark = f"end of example {self.examples}\n".encode()
        self.process.stdin.write(text.encode() + b"\\echo " + mark)
        self.process.stdin.flush()
        return self._read_to(mark)

    def _read_to(self, mark):
        got, deadline = b"", time.monotonic() + LIMIT
        while not got.endswith(mark):
            if not self.selector.select(deadline - time.monotonic()):
                raise Hanging(got.decode())
            piece = os.read(self.process.stdout.fileno(), 65536)
            if not piece:
                return got.decode()
            got += piece
        return got[:-len(mark)].decode()

    def close(self):
        self.process.kill()
        self.process.wait()


class Runner:
    """The examples of one document, in order, in the database of PGDATABASE."""

    def __init__(self):
        self.sessions = {}
        self.namespace = {"__name__": "example"}
        self.directory = tempfile.TemporaryDirectory()

    def run(self, block, place):
        """What the example prints; NotHere if what runs it is missing."""
        if block.language == "sql":
            name = block.directives.get("session", "a")
            if name not in self.sessions:
                self.sessions[name] = Psql(self.directory.name)
            return self.sessions[name].run(block.text)
        if block.language == "python" and "needs" not in block.directives:
            return self._python(block.text, place)
        return self._program(block)

    def _python(self, text, place):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(text, place, "exec"), self.namespace)
        return printed.getvalue()

    def _program(self, block):
        reason = programs.missing(block.language, block.directives["needs"])
        if reason:
            raise NotHere(reason)
        return programs.run(block.language, block.text, self.directory.name)

    def close(self):
        for session in self.sessions.values():
            session.close()
        self.directory.cleanup()
