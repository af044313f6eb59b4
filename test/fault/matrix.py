#!/usr/bin/python3
"""A fault at every step of every call.

Each call of calls.py fails at each point that it passes, and at each of the
first passes of that point: by an error, by a cancel and by the end of its
session; at the three isolation levels; in autocommit, in a transaction block
and in a savepoint that is rolled back, after which the transaction goes on.

After each fault the record is what it was and nothing the call wrote is there;
the session, if there still is one, holds no lock, snapshot or transaction id
and works; in a transaction that went on the call succeeds; and another session
can bring the key to its replay.  After each point the table agrees with its
indexes and a vacuum finds nothing that it has to keep; whoever waits has no
buffer pinned.  A leak of a pin, a snapshot or a file the server would tell in
its log.
"""

import contextlib
import itertools
import json
import os
import sys
from pathlib import Path

import psycopg
from psycopg.pq import TransactionStatus as Status

from calls import CALLS
from cluster import (EFFECTS, SETUP, STATE, Log, Stalled, arguments_of, await_true, connect,
                     corruption, left_behind, retained, state_of, value)

sys.path.append(str(Path(__file__).resolve().parents[1] / "stress"))
from lib import tap  # noqa: E402  (the path comes first)
from lib.workers import in_parallel  # noqa: E402

WORKERS = 2
LEVELS = ("read committed", "repeatable read", "serializable")
ACTIONS = {"error": "XX000", "cancel": "57014", "exit": "57P01"}
PASSES = 2              # of one point that are tried in one call
# Whose number depends on what dead versions there are, or on the time.
ONLY_FIRST = {"between leaf and heap", "in wait"}

# The key as others see it, and what might stand in their way.
SHOWN = """
    SELECT concat_ws(' ', (SELECT outcome FROM idem_lookup('fault', %(k)s)),
        (SELECT string_agg(locktype, ' ') FROM pg_locks
         WHERE pid = %(pid)s AND locktype IN ('tuple', 'spectoken')))"""

PINNED = """
    SELECT count(*) FROM pg_buffercache
    WHERE reldatabase = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND pinning_backends > 0"""
LOOKS = 10              # at the pins of a call that stands still

ALL_POINTS = {point for call in CALLS for point in call.passes}


class Server:
    """The victim's session, and an observer's."""

    def __init__(self):
        self.observer = connect()
        self.observer.execute("DELETE FROM idem_record; DELETE FROM idem_policy; TRUNCATE effect")
        self.keys = (f"k{n}" for n in itertools.count(1))
        self.holder = connect()
        self.begin_victim()

    def begin_victim(self):
        self.victim = connect()
        self.pid = self.victim.info.backend_pid
        self.victim.execute("SET lock_timeout = '10 ms'")

    def close(self):
        for db in (self.observer, self.holder, self.victim):
            db.close()


@contextlib.contextmanager
def prepared(server, call, arguments):
    """The record as the call is to find it, held by another session if need be."""
    if call.setup:
        server.observer.execute(call.setup, arguments)
    if call.stalled:
        with Stalled(call.holder, arguments, "before confirm"):
            yield
    elif call.holder:
        server.holder.execute("BEGIN;" + call.holder, arguments)
        yield
        server.holder.execute("ROLLBACK")
    else:
        yield


def answer(db, call, arguments):
    """What the call says, or the SQLSTATE of its error."""
    try:
        return value(db, call.sql, arguments)
    except psycopg.Error as error:
        return state_of(error)


def end(db, call, arguments):
    db.execute(call.end, arguments)
    if call.end != "COMMIT":
        db.execute("COMMIT PREPARED %(gid)s", arguments)


# ---------------------------------------------------------------------------
# Without a fault: which points does the call pass?
# ---------------------------------------------------------------------------

def trace(server, call):
    """Answer, and the points passed in order.  Who waits is cancelled when it begins to."""
    arguments = arguments_of(next(server.keys))
    passed = []

    def listen(notice):
        # how far it comes until the cancel arrives is chance; each call looks for its tables
        # first, as often as it takes
        if (notice.message_primary.startswith("passing ") and "in wait" not in passed
                and not notice.message_primary.endswith(" in schema")):
            passed.append(notice.message_primary.removeprefix("passing "))
            if passed[-1] == "in wait":
                db.cancel()

    with prepared(server, call, arguments), connect() as db:
        db.add_notice_handler(listen)
        db.execute("SET idempotency.fault = 'any:note'")
        if "autocommit" in call.modes:
            said = answer(db, call, arguments)
        else:
            db.execute("BEGIN")
            said = answer(db, call, arguments)
            end(db, call, arguments)
    return said, passed


def tries(passed):
    """(point, pass) for all that is to fail."""
    for point in dict.fromkeys(passed):
        most = 1 if point in ONLY_FIRST else min(PASSES, passed.count(point))
        yield from ((point, n) for n in range(most))


# ---------------------------------------------------------------------------
# With a fault
# ---------------------------------------------------------------------------

class Case:
    """One fault, and what is wrong after it."""

    def __init__(self, server, call, fault, level, mode):
        self.server, self.call, self.level, self.mode = server, call, level, mode
        self.point, self.nth, self.action = fault
        self.arguments = {**arguments_of(next(server.keys)), "pid": server.pid}
        self.wrong = []

    def __str__(self):
        return f"{self.point} ({self.nth}) {self.action}, {self.level}, {self.mode}"

    def expect(self, have, want, what):
        if have != want:
            self.wrong.append(f"{self}: {what} is {have!r}, not {want!r}")

    def observe(self, sql):
        return value(self.server.observer, sql, self.arguments)

    def run(self):
        db = self.server.victim
        with prepared(self.server, self.call, self.arguments):
            before = self.observe(STATE)
            self.shown = self.observe(SHOWN)
            db.execute(f"SET default_transaction_isolation = '{self.level}'")
            getattr(self, "in_" + self.mode)(db)
            self.outlive()
            self.check_state(before)
        self.check_after()
        return self.wrong

    def fail(self, db, finish=""):
        """Run the call, and what ends its transaction; it fails somewhere."""
        db.execute(f"SET idempotency.fault = '{self.point}:{self.action}:{self.nth}'")
        try:
            said = answer(db, self.call, self.arguments)
            if said == self.call.answer:
                db.execute(finish, self.arguments)
        except psycopg.Error as error:
            said = state_of(error)
        self.expect(said, ACTIONS[self.action], "the error")

    def in_autocommit(self, db):
        self.fail(db)

    def in_block(self, db):
        db.execute("BEGIN; INSERT INTO effect VALUES (%(k)s)", self.arguments)
        self.fail(db, self.call.end)
        if not db.closed and db.info.transaction_status != Status.IDLE:
            db.execute("ROLLBACK")

    def in_savepoint(self, db):
        outer = {**self.arguments, "k": self.arguments["k"] + " outer"}
        db.execute("BEGIN; INSERT INTO effect VALUES (%(k)s);"
                   "SELECT idem_claim('fault', %(k)s); SAVEPOINT s", outer)
        self.fail(db, f"SELECT idem_finish('fault', %(k)s || ' outer'); RELEASE s; {self.call.end}")
        # after a failed commit there is nothing to go back to
        if not db.closed and db.info.transaction_status != Status.IDLE:
            self.go_on(db, outer)

    def go_on(self, db, outer):
        """Back to the savepoint, and everything works as if nothing had been."""
        db.execute("ROLLBACK TO s")
        self.expect(self.observe(SHOWN), self.shown, "what others see after ROLLBACK TO")
        again = {**self.arguments, "wait": "1 ms"}
        self.expect(answer(db, self.call, again), self.call.answer, "the answer after ROLLBACK TO")
        if db.info.transaction_status == Status.INERROR:
            db.execute("ROLLBACK TO s")
        self.expect(value(db, "SELECT idem_finish('fault', %(k)s)", outer), "True",
                    "the finish of the claim before the savepoint")
        end(db, self.call, self.arguments)
        self.expect(value(self.server.observer, "SELECT outcome FROM idem_lookup('fault', %(k)s)",
                          outer), "replayed", "the claim before the savepoint")
        self.went_on = True

    went_on = False

    def outlive(self):
        """Wait for a session that ends, and get another one."""
        if self.action != "exit":
            return
        await_true(self.server.observer, "SELECT NOT EXISTS (SELECT FROM pg_stat_activity "
                   "WHERE pid = %s)", self.server.pid)
        self.expect(self.server.victim.closed, True, "the connection's end")
        self.server.victim.close()
        self.server.begin_victim()

    def check_state(self, before):
        if self.went_on:
            return
        after = self.observe(STATE)
        if self.call.piecemeal:
            self.expect(rows(after) <= rows(before), True, "that what is left is unchanged")
        else:
            self.expect(after, before, "the record")
            self.expect(self.observe(EFFECTS), "0", "the number of effects")

    def check_after(self):
        """The session is clean and works; the key is anybody's."""
        server, k = self.server, self.arguments["k"]
        server.victim.execute("SET idempotency.fault = ''")
        self.expect(left_behind(server.observer, server.pid), [], "what the session left behind")
        for db, key, what in ((server.victim, k + " next", "the session's next claim"),
                              (server.observer, k, "the claim of another session")):
            self.expect(value(db, "SELECT run_to_replay(%s)", (key,)), "replayed", what)


def rows(state):
    return {json.dumps(row) for row in json.loads(state) or ()} if state != "None" else set()


def try_point(server, call, point, nth):
    """All faults of one pass.  How many, and what is wrong."""
    cases, wrong = 0, []
    for level, mode, action in itertools.product(LEVELS, call.modes, ACTIONS):
        wrong += Case(server, call, (point, nth, action), level, mode).run()
        cases += 1
    wrong += corruption(server.observer) + left_behind(server.observer, server.pid)
    wrong += retained(server.observer)
    server.observer.execute("TRUNCATE effect")
    return cases, wrong


def pinned_in_wait(server, call):
    """How many buffers a call that waits keeps from a vacuum.

    Who writes a buffer out has it pinned too, for as long as that takes: the least counts.
    """
    arguments = arguments_of(next(server.keys))
    with prepared(server, call, arguments), Stalled(call.sql, arguments, "in wait", endless=True):
        return min(int(value(server.observer, PINNED)) for _ in range(LOOKS))


def try_call(server, call):
    """Everything about one call.  How many faults, the points, and [(assertion, what is wrong)]."""
    said, passed = trace(server, call)
    to_say = "57014" if "in wait" in call.passes else call.answer
    verdicts = [(f"{call.name}: its answer, and the points on its way",
                 differences((said, sorted(set(passed))), (to_say, sorted(call.passes))))]
    total = 0
    for point, nth in tries(passed):
        cases, wrong = try_point(server, call, point, nth)
        total += cases
        verdicts.append((f"{call.name}, {point}, pass {nth + 1}: {cases} faults", wrong))
    if "in wait" in call.passes and not call.stalled:
        verdicts.append((f"{call.name}: no buffer pinned meanwhile",
                         differences(pinned_in_wait(server, call), 0)))
    return total, set(passed), verdicts


def differences(have, want):
    return [] if have == want else [f"have: {have!r}", f"want: {want!r}"]


def work(database, call):
    os.environ["PGDATABASE"] = database
    server = Server()
    result = try_call(server, call)
    server.close()
    return result


def create_databases():
    """One for each worker."""
    names = [f"{os.environ['PGDATABASE']}_{number}" for number in range(WORKERS)]
    for name in names:
        with connect() as db:
            db.execute(f"CREATE DATABASE {name}")
        with connect(dbname=name) as db:
            db.execute(SETUP)
    return names


def main():
    log, total, seen = Log(), 0, set()
    databases = create_databases()
    # calls that take about as long as each other go together
    waiting = sorted(CALLS, key=lambda call: len(call.passes) * len(call.modes))
    while waiting:
        jobs = [(work, database, waiting.pop()) for database in databases if waiting]
        for cases, passed, verdicts in in_parallel(jobs):
            total += cases
            seen |= passed
            for name, wrong in verdicts:
                tap.none(wrong, name)
    tap.none(ALL_POINTS ^ seen, "every point is on some call's way")
    tap.none(log.suspicious(), "no warning in the server's log")
    tap.note(f"{total} faults")
    tap.finish()


if __name__ == "__main__":
    main()
