#!/usr/bin/python3
"""idem_once and idem_once_batch under redelivery, and COMMITs without an answer.

Every message is delivered to every consumer.  Batches overlap and come in any
order, transactions roll back and are done again, at all isolation levels.
Among the transactions that committed, each key was new exactly once; batches
never deadlock with each other.

Then the connection is lost at COMMIT, STRESS_LOST_COMMITS times (200): the
consumer cannot know whether it committed, idem_lookup tells, and in the end
each message has taken effect once.
"""

import collections
import os
import random
import time

import psycopg

from lib import tap
from lib.workers import connect, in_parallel, sever, wire_of

CONSUMERS = 8
MESSAGES = 3000
LARGEST_BATCH = 500
SINGLES = 400                   # messages consumed by ones and sixes
LOST_COMMITS = int(os.environ.get("STRESS_LOST_COMMITS") or tap.scaled(200))

LEVELS = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")

SETUP = """
CREATE TABLE applied (scope text, key text, consumer int);
CREATE INDEX ON applied (scope, key);
"""

BATCH = """INSERT INTO applied SELECT %(scope)s, key, %(consumer)s
           FROM idem_once_batch(%(scope)s, %(keys)s) AS key"""
SINGLE = """INSERT INTO applied SELECT %(scope)s, %(key)s, %(consumer)s
            WHERE idem_once(%(scope)s, %(key)s)"""


class Undone(Exception):
    """The consumer rolls back."""


class Consumer:
    def __init__(self, scope, number):
        self.scope, self.number = scope, number
        self.rng = random.Random(f"{tap.SEED}/{scope}/{number}")
        self.db = connect(options="-c deadlock_timeout=20ms")
        self.errors = collections.Counter()
        self.lost = []

    def done(self, keys, work):
        """Do it in one transaction.  False if it was rolled back."""
        try:
            with self.db.transaction():
                self.db.execute(f"SET TRANSACTION ISOLATION LEVEL {self.rng.choice(LEVELS)}")
                work()
                if self.rng.random() < 0.2:
                    raise Undone
        except Undone:
            return False
        except psycopg.Error as error:
            self.errors[error.sqlstate] += 1
            return False
        self.lost += self.missing(keys)
        return True

    def missing(self, keys):
        """Keys not applied although they were handled: new here, or told to be so elsewhere."""
        return self.db.execute(
            "SELECT unnest(%(keys)s::text[]) EXCEPT SELECT key FROM applied "
            "WHERE scope = %(scope)s AND key = ANY (%(keys)s)",
            {"scope": self.scope, "keys": keys}).fetchall()

    def mark(self, key):
        self.db.execute(SINGLE, {"scope": self.scope, "key": key, "consumer": self.number})

    def mark_batch(self, keys):
        self.db.execute(BATCH, {"scope": self.scope, "keys": keys, "consumer": self.number})


def consume_batches(number):
    """All messages, in batches of any size and order, each until it commits."""
    consumer = Consumer("batch", number)
    keys = [f"message-{n}" for n in range(tap.scaled(MESSAGES))]
    consumer.rng.shuffle(keys)
    while keys:
        size = consumer.rng.choice((1, 10, LARGEST_BATCH))
        batch, keys = keys[:size], keys[size:]
        repeated = batch + batch[:2]
        if not consumer.done(batch, lambda keys=repeated: consumer.mark_batch(keys)):
            keys += batch
    return consumer.errors, consumer.lost


def consume_singly(number):
    """All messages, some of them several in a transaction in any order, which may deadlock."""
    consumer = Consumer("single", number)
    # about the same at about the same time
    keys = [f"message-{n}" for n in sorted(range(tap.scaled(SINGLES)),
                                           key=lambda n: n + consumer.rng.random() * 12)]
    while keys:
        size = consumer.rng.choice((1, 6))
        some, keys = keys[:size], keys[size:]
        if not consumer.done(some, lambda keys=some: [consumer.mark(key) for key in keys]):
            keys += some
    return consumer.errors, consumer.lost


def run(consume):
    """All consumers.  Their errors, and what was lost."""
    errors, lost = zip(*in_parallel([(consume, n) for n in range(CONSUMERS)]))
    return sum(errors, collections.Counter()), sum(lost, [])


def judge_applied(db, scope, messages, what):
    tap.equal(db.execute("SELECT count(*), count(DISTINCT key) FROM applied WHERE scope = %s",
                         (scope,)).fetchone(), (messages, messages), what)


def test_batches(db):
    errors, lost = run(consume_batches)
    tap.equal(dict(errors), {}, "batches in any order: no deadlock and no other error")
    tap.none(lost, "a key of a batch that was not new had been applied")
    judge_applied(db, "batch", tap.scaled(MESSAGES), "each key of the batches was new once")


def test_singles(db):
    errors, lost = run(consume_singly)
    tap.note(f"deadlocks among transactions of several calls: {errors.pop('40P01', 0)}")
    tap.equal(dict(errors), {}, "single calls in any order: deadlocks at most, no other error")
    tap.none(lost, "a key of a single call that was not new had been applied")
    judge_applied(db, "single", tap.scaled(SINGLES), "each key of the single calls was new once")


# ---------------------------------------------------------------------------
# The answer to COMMIT is lost
# ---------------------------------------------------------------------------

COMMIT = b"Q\x00\x00\x00\x0bCOMMIT\x00"

CLAIM = """
    WITH c AS MATERIALIZED (
        SELECT token FROM idem_claim(%(scope)s, %(key)s, wait => '60 s') WHERE outcome = 'claimed'),
    a AS (INSERT INTO applied SELECT %(scope)s, %(key)s, %(consumer)s FROM c)
    SELECT idem_finish(%(scope)s, %(key)s, token => token) FROM c"""


def commit_and_lose(db, rng, killer):
    """Lose the connection before, in the middle of, or after sending COMMIT."""
    wire = wire_of(db)
    how = rng.choice(("before", "torn", "at once", "after a while", "terminated"))
    if how == "before":
        sever(wire)
    elif how == "torn":
        wire.sendall(COMMIT[:rng.randrange(1, len(COMMIT))])
        sever(wire)
    else:
        wire.sendall(COMMIT)
        if how == "terminated":
            killer.execute("SELECT pg_terminate_backend(%s)", (db.info.backend_pid,))
        elif how == "after a while":
            time.sleep(rng.random() * 0.002)
        sever(wire)
    db.close()
    return how


def ask(db, scope, key):
    """What became of it, once no session is at it any more."""
    while True:
        outcome = db.execute("SELECT outcome FROM idem_lookup(%s, %s)", (scope, key)).fetchone()[0]
        if outcome != "in_progress":
            return outcome
        time.sleep(0.001)


def deliver(rng, killer, call, scope, key, consumer):
    """Until lookup says that it is done.  Yields how each try ended."""
    while ask(killer, scope, key) != "replayed":
        db = connect()
        db.execute("BEGIN")
        db.execute(call, {"scope": scope, "key": key, "consumer": consumer})
        how = commit_and_lose(db, rng, killer)
        yield f"{how}: {ask(killer, scope, key)}"


def consume_losing(number, scope, call, messages):
    rng = random.Random(f"{tap.SEED}/{scope}/{number}")
    ends = collections.Counter()
    with connect() as killer:
        for n in rng.sample(range(messages), messages):
            ends.update(deliver(rng, killer, call, scope, f"message-{n}", number))
    return ends


def test_lost_commits(db):
    messages = max(1, LOST_COMMITS // 2)
    for scope, call in (("lost once", SINGLE), ("lost claim", CLAIM)):
        ends = sum(in_parallel([(consume_losing, n, scope, call, messages) for n in range(4)]),
                   collections.Counter())
        tap.note(f"{scope}: {sum(ends.values())} answers lost; lookup said " + ", ".join(
            f"{n} {end}" for end, n in sorted(ends.items())))
        judge_applied(db, scope, messages, f"{scope}: lookup decided, each took effect once")


def main():
    tap.begin()
    with psycopg.connect("", autocommit=True) as db:
        db.execute(SETUP)
        test_batches(db)
        test_singles(db)
        test_lost_commits(db)
    tap.finish()


if __name__ == "__main__":
    main()
