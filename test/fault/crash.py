#!/usr/bin/python3
"""The server crashes at a step of a call, and recovers.

SIGKILL strikes the session at each point of the calls that write: from inside,
right at the point; and from outside, while it stands still where it holds most:
between index and heap, in an unconfirmed insertion, and in the middle of
COMMIT.  PostgreSQL then ends all sessions and replays its log.

Nothing was committed, so afterwards each record is what it was, nothing the
call wrote is there, the table agrees with its indexes, and the key can be
brought to its replay.
"""

import os
import signal
import sys
from pathlib import Path

import psycopg

from calls import CALLS
from cluster import (EFFECTS, SETUP, STATE, Log, Stalled, arguments_of, await_lost, await_up,
                     corruption, state_of, value)

sys.path.append(str(Path(__file__).resolve().parents[1] / "stress"))
from lib import tap  # noqa: E402  (the path comes first)

# At every point: each way of writing.
WRITING = ("claim", "claim and finish", "claim and finish, prepared", "claim of a released key",
           "forget", "sweep")
STALLED = (("claim of a settled key", "between leaf and heap"),
           ("finish", "between leaf and heap"),
           ("claim", "before confirm"),
           ("finish", "after index insert"),
           ("claim and finish", "at commit"),
           ("execute", "at commit"),
           ("claim and finish, prepared", "at prepare"))

BY_NAME = {call.name: call for call in CALLS}


def transaction_of(call):
    return f"BEGIN; INSERT INTO effect VALUES (%(k)s); {call.sql}; {call.end}"


def crash_inside(call, point, arguments):
    """Returns the SQLSTATE that the session ends with."""
    with await_up() as db:
        db.execute(f"SET idempotency.fault = '{point}:crash'")
        try:
            db.execute(transaction_of(call), arguments)
        except psycopg.Error as error:
            return state_of(error)
    return "no crash"


def crash_outside(call, point, arguments):
    with Stalled(transaction_of(call), arguments, point) as stalled:
        # what is written so far shall be there after the crash
        stalled.control.execute("CHECKPOINT")
        os.kill(stalled.pid, signal.SIGKILL)
        stalled.thread.join()
        return "connection lost" if stalled.db.closed else "no crash"


def judge(n, call, point, crash):
    """Let it crash, and say what is wrong afterwards."""
    arguments = arguments_of(f"k{n}")
    witness = await_up()
    if call.setup:
        witness.execute(call.setup, arguments)
    before = value(witness, STATE, arguments)
    started = value(witness, "SELECT pg_postmaster_start_time()")
    said = crash(call, point, arguments)
    await_lost(witness)
    with await_up() as db:
        have = {"the end": said,
                "the record": value(db, STATE, arguments),
                "effects": value(db, EFFECTS, arguments),
                "the postmaster": value(db, "SELECT pg_postmaster_start_time()"),
                "prepared": value(db, "SELECT count(*) FROM pg_prepared_xacts"),
                "corruption": corruption(db),
                "the next claim": value(db, "SELECT run_to_replay(%(k)s)", arguments)}
    want = {"the end": "connection lost", "the record": before, "effects": "0",
            "the postmaster": started, "prepared": "0", "corruption": [],
            "the next claim": "replayed"}
    return [f"{what} is {have[what]!r}, not {want[what]!r}" for what in want
            if have[what] != want[what]]


def main():
    log = Log()
    with await_up() as db:
        db.execute(SETUP)
        # no recovery from here on has to repeat what other tests did
        db.execute("CHECKPOINT")
    cases = [(BY_NAME[name], point, crash_inside) for name in WRITING
             for point in BY_NAME[name].passes]
    cases += [(BY_NAME[name], point, crash_outside) for name, point in STALLED]
    for n, (call, point, crash) in enumerate(cases):
        how = "by itself" if crash is crash_inside else "while it stands there"
        tap.none(judge(n, call, point, crash), f"{call.name}, killed at {point} {how}")
    tap.none(log.suspicious(), "no warning in the server's log")
    tap.finish()


if __name__ == "__main__":
    main()
