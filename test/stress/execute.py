#!/usr/bin/python3
"""idem_execute from many sessions, and its plans in one.

32 sessions execute commands on shared keys: the command takes effect once for
each key, and everybody is given the same response, at every isolation level.

One session runs through what a kept plan must survive: a table altered,
dropped and made again, another search_path, more command texts than are kept.
"""

import collections
import json
import random

import psycopg

from lib import tap
from lib.crowd import GATE, Crowd, error_of, rows_of

SESSIONS = 32
KEYS = 150
TEXTS = 200                     # different commands in a round
ROUNDS = 5
LEVELS = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")

SETUP = """
CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY, key text, cart jsonb);
CREATE SEQUENCE ran;
"""

ORDER = """INSERT INTO orders (key, cart) SELECT $1->>'key', $1 FROM pg_sleep(0.0005)
RETURNING json_build_object('order', id, 'cart', cart), 201"""


# ---------------------------------------------------------------------------
# Many sessions, shared keys
# ---------------------------------------------------------------------------

def crowd_texts(key, level):
    request = json.dumps({"key": key, "items": [1, 2, 3]})
    order = ORDER.replace("'", "''")
    return [f"BEGIN ISOLATION LEVEL {level}; {GATE}; "
            f"SELECT outcome, response_code, response_body FROM idem_execute('execute', '{key}', "
            f"request => '{request}', command => '{order}', wait => '100 s'); COMMIT"] * SESSIONS


def crowd_faults(key, told):
    outcomes = collections.Counter(answer[0] for answer in told)
    if outcomes != {"executed": 1, "replayed": SESSIONS - 1}:
        yield f"{key}: {dict(outcomes)}"
    if len({tuple(answer[1:]) for answer in told}) != 1:
        yield f"{key}: different responses"


def test_crowd(db):
    crowd, faults = Crowd(SESSIONS), []
    keys = tap.scaled(KEYS, len(LEVELS))
    for n in range(keys):
        answers = crowd.meet(crowd_texts(f"key-{n}", LEVELS[n % len(LEVELS)]))
        told = [next(([error_of(result)] for result in results if error_of(result)), None)
                or rows_of(results[-2])[0] for results in answers.values()]
        faults += crowd_faults(f"key-{n}", told)
    crowd.close()
    tap.none(faults, f"{SESSIONS} sessions: one executed per key, the same response for all")
    tap.equal(db.execute("SELECT count(*), count(DISTINCT key) FROM orders").fetchone(),
              (keys, keys), "command effects = distinct keys")


def test_repetition(db):
    """The sequence would count a command that ran and was rolled back, too."""
    repeats = tap.scaled(500)
    answers = collections.Counter(execute(db, "again", "SELECT nextval('ran')")
                                  for _ in range(repeats))
    tap.equal(answers, {("executed", "1"): 1, ("replayed", "1"): repeats - 1},
              f"one key {repeats} times: executed once, then replayed")
    tap.equal(db.execute("SELECT last_value, is_called FROM ran").fetchone(), (1, True),
              "a replay does not run the command")


# ---------------------------------------------------------------------------
# One session, many plans
# ---------------------------------------------------------------------------

_keys = 0


def execute(db, key, command, request=None):
    return db.execute(
        "SELECT outcome, response_body FROM idem_execute('execute', %s, command => %s, "
        "request => %s::jsonb)", (key, command, request)).fetchone()


def fresh(db, command, request=None):
    """The body that the command gives under a new key."""
    global _keys
    _keys += 1
    return execute(db, f"fresh-{_keys}", command, request)[1]


def error_under_fresh_key(db, command):
    """SQLSTATE of a command that fails, and what is then known of its key."""
    global _keys
    _keys += 1
    try:
        execute(db, f"fresh-{_keys}", command)
    except psycopg.Error as error:
        state = error.sqlstate
    else:
        state = None
    return state, db.execute("SELECT outcome FROM idem_lookup('execute', %s)",
                             (f"fresh-{_keys}",)).fetchone()[0]


def test_changes(db):
    """DDL between two runs of one and the same command."""
    command = "INSERT INTO thing DEFAULT VALUES RETURNING thing"
    db.execute("CREATE TABLE thing (a int DEFAULT 1)")
    tap.equal(fresh(db, command), "(1)", "a command runs")
    db.execute("ALTER TABLE thing ADD b text DEFAULT 'x'")
    tap.equal(fresh(db, command), "(1,x)", "and sees a column added")
    db.execute("ALTER TABLE thing ALTER a TYPE text, ALTER a SET DEFAULT 'y', DROP b")
    tap.equal(fresh(db, command), "(y)", "a column altered and one dropped")
    db.execute("DROP TABLE thing")
    tap.equal(error_under_fresh_key(db, command), ("42P01", "absent"),
              "the table dropped: its error, and no claim left")
    db.execute("CREATE TABLE thing (z int DEFAULT 26)")
    tap.equal(fresh(db, command), "(26)", "the table made again")


def test_search_path(db):
    command = "SELECT name FROM place"
    for schema in ("here", "there"):
        db.execute(f"CREATE SCHEMA {schema} CREATE TABLE place (name text)")
        db.execute(f"INSERT INTO {schema}.place VALUES ('{schema}')")
    bodies = []
    for schema in ("here", "there", "here"):
        db.execute(f"SET search_path = {schema}, public")
        bodies.append(fresh(db, command))
    db.execute("RESET search_path")
    tap.equal(bodies, ["here", "there", "here"], "a command follows the caller's search_path")
    tap.equal(error_under_fresh_key(db, command), ("42P01", "absent"), "out of its path it fails")


def memory(db):
    """Memory of the session, in bytes."""
    return db.execute(
        "SELECT sum(total_bytes)::bigint FROM pg_backend_memory_contexts").fetchone()[0]


def run_texts(db, rng, rounds):
    """In each round as many commands, each twice: those of the round before, and new ones."""
    for number in rounds:
        texts = [TEXTS // 2 * number + n for n in range(TEXTS)] * 2
        for n in rng.sample(texts, len(texts)):
            body = fresh(db, f"SELECT {n} + ($1->>'n')::int", '{"n": 1000}')
            if body != str(1000 + n):
                yield f"command {n} answered {body}"


def test_many_texts(db):
    rng, rounds = random.Random(tap.SEED), tap.scaled(ROUNDS)
    faults = list(run_texts(db, rng, [0]))
    before = memory(db)
    faults += run_texts(db, rng, range(1, rounds + 1))
    after = memory(db)
    tap.none(faults, f"{TEXTS} commands in turn, and others later: each is the one that runs")
    tap.note(f"memory of the session: {before} bytes, later {after}")
    tap.ok(after < before * 1.1 + 65536, "their plans do not pile up",
           [f"{before} bytes grew to {after}"])


def test_errors(db):
    for command, state, what in (
            ("SELECT 1 / 0", "22012", "an error while it runs"),
            ("SELEC 1", "42601", "a syntax error"),
            ("SELECT * FROM nowhere", "42P01", "an unknown table"),
            ("SELECT generate_series(1, 2)", "21000", "two rows"),
            ("INSERT INTO orders (key) SELECT 'lost' FROM pg_sleep(0) WHERE 1 / 0 = 1", "22012",
             "an error in a writing command"),
            ("SELECT 1; SELECT 2", "22023", "two statements")):
        tap.equal(error_under_fresh_key(db, command), (state, "absent"),
                  f"{what} propagates and leaves no claim")
        tap.equal(error_under_fresh_key(db, command), (state, "absent"), f"{what}, again")
    tap.equal(fresh(db, "SELECT 'alive'"), "alive", "after which commands still run")


def test_transaction(db):
    """In a larger transaction, an error costs a savepoint and not the rest."""
    with db.transaction():
        execute(db, "kept", "SELECT 'kept'")
        try:
            with db.transaction():
                execute(db, "lost", "SELECT 1 / 0")
        except psycopg.errors.DivisionByZero:
            pass
    tap.equal([execute(db, key, "SELECT 'new'") for key in ("kept", "lost")],
              [("replayed", "kept"), ("executed", "new")],
              "a savepoint rolled back by the command's error loses its key only")


def main():
    tap.begin()
    with psycopg.connect("", autocommit=True) as db:
        db.execute(SETUP)
        test_crowd(db)
        test_repetition(db)
        test_changes(db)
        test_search_path(db)
        test_many_texts(db)
        test_errors(db)
        test_transaction(db)
    tap.finish()


if __name__ == "__main__":
    main()
