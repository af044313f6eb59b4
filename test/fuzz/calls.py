#!/usr/bin/python3
"""Random calls of every function, with all that SQL lets a caller write.

Sessions call the functions on a few shared keys with odd, NULL, long, multibyte,
toasted and wrong-typed arguments, by position and by name, in FROM and in the
select list, in PL/pgSQL, cursors and prepared statements, in and out of
transactions at all isolation levels, with settings changed in between.  Every
answer must be a row of the right form or one of the SQLSTATEs that these
arguments explain; the server must come through it, and the table be sound.

    FUZZ_SEED     seed of every choice; sessions still meet as they happen to
    FUZZ_SCALE    multiplies the number of calls: 1 is 100,000, TEST_LONG 10
"""

import os
import random
import sys
from collections import Counter

import psycopg

sys.path.insert(1, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "stress"))
from lib import tap, workers  # noqa: E402
from randomsql import server  # noqa: E402
from randomsql.session import OUTCOMES, Session  # noqa: E402
from randomsql.statements import Generator  # noqa: E402

CALLS = 100_000
SESSIONS = 4
PATIENCE_PER_CALL = 0.02        # seconds until a session that does not end is a failure
OPTIONS = "-c statement_timeout=3s -c client_min_messages=warning"

# Errors that a run of full size must have met, or it has not looked.
MET = {
    "idem_claim": "00000 22023 0A000 25006 ID002",
    "idem_finish": "00000 22023 ID001 54000 25006",
    "idem_lookup": "00000 22023 22021",
    "idem_extend": "00000 22023 ID001 25006",
    "idem_checkpoint": "00000 22023 ID001 25006",
    "idem_assert": "00000 22023 ID001 25006",
    "idem_once": "00000 22023 55006 25006",
    "idem_once_batch": "00000 22023 25006",
    "idem_execute": "00000 22023 21000 42804 25006 22012",
    "idem_takeover": "00000 22023 25006",
    "idem_resolve": "00000 22023 54000 25006",
    "idem_forget": "00000 22023 25006",
    "idem_sweep": "00000 22023 25006",
    "idem_sweep_all": "00000 22023 2D000",
    "idem_fingerprint": "00000 22P02 54001",
    "idem_grant": "00000 22023 42704",
    "idem_revoke": "00000 22023 42704",
    "idem_privilege_set": "00000 22023",
    "idem_unresolved": "00000",
    "idem_health": "00000",
}


def session(number, calls, parallel):
    """One client; the first may grant, the last is one that is granted to."""
    restricted = number == SESSIONS - 1
    conninfo = f"options='{OPTIONS}'" + (" user=fuzz_client" if restricted else "")
    generator = Generator(random.Random(f"{tap.SEED}/{number}"), number == 0, parallel)
    s = Session(generator, conninfo, restricted)
    s.run(calls)
    return s.calls, s.states, s.outcomes, s.faults


def run_calls(calls, parallel):
    made, states, outcomes, faults = Counter(), Counter(), Counter(), []
    for done, ended, told, wrong in workers.in_parallel(
            [(session, n, calls // SESSIONS, parallel) for n in range(SESSIONS)],
            patience=PATIENCE_PER_CALL * calls):
        made += done
        states += ended
        outcomes += told
        faults += wrong
    return made, states, outcomes, faults


def report(made, states, outcomes):
    for function in sorted(made):
        ended = ", ".join(f"{state} {n}" for (name, state), n in sorted(states.items())
                          if name == function)
        tap.note(f"{function}: {made[function]} calls: {ended}")
    tap.note("outcomes: " + ", ".join(f"{name} {n}" for name, n in sorted(outcomes.items())))


def check_met(states, outcomes):
    tap.equal(sorted(OUTCOMES - set(outcomes)), [], "every outcome was met")
    for function, wanted in MET.items():
        missing = [state for state in wanted.split() if not states[function, state]]
        tap.equal(missing, [], f"{function}: every kind of answer was met")


def check_server(db, before, position):
    tap.equal(server.sound(db), before, "the server has not been down, nor a session of it")
    if position is not None:
        tap.none(server.alarms(position), "the server's log shows no crash and no leak")
    tap.none(server.violations(db), "every record satisfies the constraints")
    for name in server.INVARIANTS:
        tap.none(server.broken(db, name), name)
    found = server.amcheck(db)
    if found is None:
        tap.note("amcheck is not installed")
    else:
        tap.none(found, "table and indexes are sound")


def main():
    tap.begin()
    calls = tap.scaled(CALLS * (10 if os.environ.get("TEST_LONG") else 1), 1000)
    with psycopg.connect("", autocommit=True) as db:
        db.execute(server.SETUP)
        parallel = ("debug_parallel_query" if db.info.server_version >= 160000
                    else "force_parallel_mode")
        before, position = server.sound(db), server.log_position()
        made, states, outcomes, faults = run_calls(calls, parallel)
        report(made, states, outcomes)
        tap.none(faults, f"{sum(made.values())} calls, each answered as its arguments allow")
        if calls >= CALLS:
            check_met(states, outcomes)
        check_server(db, before, position)
        db.execute(server.TEARDOWN)
    tap.finish()


if __name__ == "__main__":
    main()
