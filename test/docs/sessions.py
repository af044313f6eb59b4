"""Running examples: psql sessions, Python, and programs of other languages."""
import contextlib
import io
import os
import re
import selectors
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LIMIT = 120                     # seconds until an example counts as hanging

PSQL = ["psql", "--no-psqlrc", "--quiet", "--pset=pager=off"]
PROGRAMS = {
    "ruby": ["/usr/bin/ruby"],
    "python": [sys.executable],
}
SUFFIXES = {"ruby": ".rb", "python": ".py"}

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
        """What the example prints; None if its language is not at hand."""
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
        command = PROGRAMS[block.language]
        if not is_at_hand(block.language, block.directives.get("needs")):
            return None
        program = Path(self.directory.name) / ("example" + SUFFIXES[block.language])
        program.write_text(block.text, encoding="utf-8")
        done = subprocess.run([*command, program], timeout=LIMIT, text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, check=False)
        return done.stdout + (f"exit status {done.returncode}\n" if done.returncode else "")

    def close(self):
        for session in self.sessions.values():
            session.close()
        self.directory.cleanup()


def is_at_hand(language, module):
    """Can a program in that language be run, with that module?"""
    option, question = {
        "python": ("-c", f"import {module}"),
        "ruby": ("-e", f"require '{module}'"),
    }[language]
    try:
        return subprocess.run([*PROGRAMS[language], option, question], check=False,
                              stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL).returncode == 0
    except FileNotFoundError:
        return False
