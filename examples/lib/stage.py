"""What a runnable example stands on: a database of its own, programs that can
be struck down and started again, and checks that print TAP.

Connection settings are those of libpq's environment (PGHOST, PGPORT, ...), for
a user who may create databases and roles: a throw-away cluster.
"""

import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg


class Stage:
    """A database, a directory and processes of this run's own."""

    def __init__(self, name):
        self.database = f"{name}_{os.getpid()}"
        self.directory = Path(tempfile.mkdtemp(prefix=f"{name}."))
        self.programs = []
        self.admin(f"CREATE DATABASE {self.database}")

    def admin(self, command):
        with closing(psycopg.connect("", autocommit=True)) as conn:
            conn.execute(command)

    @contextmanager
    def connect(self, user=None, autocommit=True):
        with closing(psycopg.connect(dbname=self.database, user=user,
                                     autocommit=autocommit)) as conn:
            yield conn

    def rows(self, query, *arguments, user=None):
        with self.connect(user) as conn:
            cur = conn.execute(query, arguments or None)
            return cur.fetchall() if cur.description else []

    def value(self, query, *arguments):
        return self.rows(query, *arguments)[0][0]

    def clear(self, keep=False):
        for program in self.programs:
            program.kill()
        if keep:
            print(f"# kept: database {self.database}, logs in {self.directory}")
            return
        self.admin(f"DROP DATABASE {self.database} WITH (FORCE)")
        shutil.rmtree(self.directory)


class Program:
    """A process that belongs to a stage, with a log; struck down by SIGKILL,
    with all that it started if it is a group."""

    def __init__(self, stage, name, argv, env, port=None, group=False):
        self.name, self.argv, self.port = name, [str(arg) for arg in argv], port
        self.group = group
        self.env = {**os.environ, "PGDATABASE": stage.database, **env}
        self.log = stage.directory / f"{name}.log"
        self.child = None
        stage.programs.append(self)

    def start(self, **env):
        self.env.update(env)
        with open(self.log, "ab") as log:
            self.child = subprocess.Popen(self.argv, env=self.env, stdin=subprocess.DEVNULL,
                                          stdout=log, stderr=log, start_new_session=self.group)
        if not wait_until(self.up_or_dead) or self.child.poll() is not None:
            raise RuntimeError(f"{self.name} did not start:\n{self.log.read_text()}")

    def up_or_dead(self):
        return self.port is None or listening(self.port) or self.child.poll() is not None

    def running(self):
        return self.child is not None and self.child.poll() is None

    def end(self):
        """Ask it to, and wait."""
        self.child.terminate()
        self.child.wait()

    def kill(self):
        if self.running():
            if self.group:
                os.killpg(self.child.pid, signal.SIGKILL)
            else:
                self.child.kill()
            self.child.wait()


class Checks:
    """Collects verdicts and prints them, as TAP or for people."""

    def __init__(self, tap):
        self.tap, self.number, self.failed = tap, 0, 0

    def that(self, holds, what, but=None):
        self.number += 1
        self.failed += not holds
        if self.tap:
            print(f"{'ok' if holds else 'not ok'} {self.number} - {what}", flush=True)
        else:
            print(f"  {'ok    ' if holds else 'FAILED'}  {what}", flush=True)
        if not holds and but is not None:
            self.say(f"        {but}")

    def same(self, got, wanted, what):
        self.that(got == wanted, what, f"got {got!r}, wanted {wanted!r}")

    def say(self, text=""):
        for line in text.splitlines() or [""]:
            print(f"# {line}".rstrip() if self.tap else line, flush=True)

    def close(self):
        if self.tap:
            print(f"1..{self.number}")
        return self.failed == 0


def wait_until(condition, seconds=180):
    """Poll; whether it came true.  The limit only keeps a fault from hanging."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def listening(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def free_ports(number):
    """Below the ephemeral range, so that no client's own socket takes one while
    a server is down."""
    ports = random.sample(range(20000, 30000), 1000)
    return [port for port in ports[:number * 10] if free(port)][:number]


def free(port):
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
