"""The storm: the clients at work, while backends are killed and the server dies.

Clients are processes, so that they truly run at once.  Meanwhile this process
watches how far they are and does the damage that the plan has at that point:

    terminated backend   pg_terminate_backend on one that is serving a request
    server crash         SIGKILL to such a backend: the postmaster throws all
                         shared memory away, and recovers from the WAL
"""

import multiprocessing
import os
import signal
import time
from typing import NamedTuple

import psycopg
from psycopg import IsolationLevel

import client
import screen

LEVELS = (IsolationLevel.READ_COMMITTED, IsolationLevel.REPEATABLE_READ,
          IsolationLevel.SERIALIZABLE)

LONG = 1                # seconds in which a crash takes every session down

BUSY = """
    SELECT pid FROM pg_stat_activity
    WHERE usename = 'shop' AND xact_start IS NOT NULL
    ORDER BY random() LIMIT 1"""


class Storm(NamedTuple):
    tries: list
    errors: list        # tracebacks of clients that met what they should not
    seconds: float
    kills: int
    crashed: float      # when; None if the server did not go down
    away: float         # for how many seconds nobody could connect


class Damage:
    """Does what the plan has in store, once its place has been reached."""

    def __init__(self, plan):
        self.todo = [(place, self.terminate) for place in plan.kills]
        self.todo += [(place, self.crash) for place in plan.crashes]
        self.todo.sort(key=lambda entry: entry[0])
        self.kills, self.crashed, self.away = 0, None, 0
        self.conn = connect()

    def reached(self, place):
        while self.todo and self.todo[0][0] <= place:
            busy = self.conn.execute(BUSY).fetchone()
            if not busy or not self.todo[0][1](busy[0]):
                return          # nobody is in a request right now; soon
            self.todo.pop(0)

    def terminate(self, pid):
        done = self.conn.execute("SELECT pg_terminate_backend(%s)", [pid]).fetchone()[0]
        self.kills += done
        return done

    def crash(self, pid):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        killed = time.time()
        if not wait_until_lost(self.conn, pid):
            return False
        self.crashed = killed
        self.conn = connect()
        self.away = time.time() - self.crashed
        return True


def wait_until_lost(conn, pid):
    """The postmaster takes every session down once it sees one die of a signal.  Or
    that one was ending by itself, and what was killed was no more than its shell:
    false once it is gone for long and the server goes on.
    """
    give_up = time.monotonic() + client.PATIENCE
    gone = None
    try:
        while time.monotonic() < give_up:
            conn.execute("SELECT")
            if gone is None and not os.path.exists(f"/proc/{pid}"):
                gone = time.monotonic()
            if gone is not None and time.monotonic() > gone + LONG:
                return False
            time.sleep(0.001)
    except psycopg.OperationalError:
        return True
    raise RuntimeError("the server went on although one of its processes was killed")


def connect():
    """A superuser's connection, as soon as the server takes one."""
    give_up = time.monotonic() + client.PATIENCE
    while True:
        try:
            return psycopg.connect(autocommit=True)
        except psycopg.OperationalError:
            if time.monotonic() > give_up:
                raise
            time.sleep(0.02)


def blow(plan, clients, seed, place_order, levels):
    """Let so many clients work off the plan; they take turns in the isolation levels."""
    fork = multiprocessing.get_context("fork")
    tickets, results = fork.Value("l", 0), fork.SimpleQueue()
    crowd = [client.Client(plan, number, seed, place_order, levels[number % len(levels)])
             for number in range(clients)]
    processes = [fork.Process(target=client.run, daemon=True, args=(one, tickets, results))
                 for one in crowd]
    for process in processes:
        process.start()
    began, damage, tries, errors = time.monotonic(), Damage(plan), [], []
    while any(process.is_alive() for process in processes) or not results.empty():
        damage.reached(tickets.value)
        show(min(tickets.value, len(plan.sends)), len(plan.sends), damage)
        while not results.empty():
            some, error = results.get()
            tries += some
            errors += [error] if error else []
        time.sleep(0.004)
    seconds = time.monotonic() - began
    errors += [f"client {process.name} died: {process.exitcode}"
               for process in processes if process.exitcode]
    screen.progress("")
    return Storm(tries, errors, seconds, damage.kills, damage.crashed, damage.away)


def show(taken, total, damage):
    bar = "█" * (taken * 30 // total)
    screen.progress(f"{bar:░<30} {taken:5,} of {total:,} sends"
                    f"   {damage.kills} backends killed"
                    f"{'   server crashed, recovered' if damage.crashed else ''}")
