#!/usr/bin/python3
"""Sweeps against each other and against traffic on the very keys they delete.

100,000 expired records lie among records that no sweep may touch.  Two
sweepers share them, while clients claim those keys again: transactionally, so
that the answer must then replay, and under leases that outlive their ttl, which
must still be owned when the sweeps are over.

The sums must add up: every expired record is deleted by one sweep or replaced
in place by one claim, and none of the others is missing.  A record that somebody
keeps locked holds up nobody.
"""

import collections
import itertools
import multiprocessing
import random
import time

import psycopg

from lib import tap
from lib.workers import connect, in_parallel

EXPIRED = 100_000
KEPT = 500                      # of each kind that no sweep may touch
CLAIMS = 1000                   # of each client
CLIENTS = 4
SWEEPERS = 2
BATCH = 300
PATIENCE = 60
LEVELS = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")

SETUP = """
CREATE TABLE effect (key text, attempt int);

CREATE FUNCTION fill(kind text, n int, state text, expires interval, lease interval,
    on_abandon text) RETURNS void LANGUAGE sql AS $$
    INSERT INTO idem_record (scope, key, principal, state, attempt, token, created_at, claimed_at,
        expires_at, ttl, on_abandon, recovered, progressed, lease, lease_expires_at, finished_at)
    SELECT kind, 'key-' || i, '', state, 1, gen_random_uuid(), t, t,
        t + '1 day' + expires + random() * interval '1 hour', '1 day', on_abandon, false, false,
        CASE WHEN state = 'processing' THEN '1 hour'::interval END, t + '1 day' + lease,
        CASE WHEN state <> 'processing' THEN t END
    FROM generate_series(1, n) i, (SELECT now() - interval '1 day') AS day(t) $$;
"""

# Expired: what sweeps delete.  The key numbers of these kinds are claimed again.
DEAD = {
    "succeeded": ("succeeded", "-2 h", None, "unknown", 0.7),
    "failed": ("failed", "-2 h", None, "retry", 0.1),
    "released": ("released", "-2 h", None, "unknown", 0.1),
    "abandoned, retry": ("processing", "-2 h", "-3 h", "retry", 0.1),
}
# Past their ttl all the same, but not expired; and one that is not even past it.
ALIVE = {
    "unknown": ("unknown", "-2 h", "-3 h", "retry"),
    "abandoned, unknown": ("processing", "-2 h", "-3 h", "unknown"),
    "leased, unknown": ("processing", "-2 h", "3 h", "unknown"),
    "leased, retry": ("processing", "-2 h", "3 h", "retry"),
    "in time": ("succeeded", "2 h", None, "unknown"),
}
UNRESOLVED = ("unknown", "abandoned, unknown")


def number_of(kind):
    return round(tap.scaled(EXPIRED) * DEAD[kind][4])


def fill(db):
    for kind, (state, expires, lease, policy, _) in DEAD.items():
        db.execute("SELECT fill(%s, %s, %s, %s, %s, %s)",
                   (kind, number_of(kind), state, expires, lease, policy))
    for kind, (state, expires, lease, policy) in ALIVE.items():
        db.execute("SELECT fill(%s, %s, %s, %s, %s, %s)",
                   (kind, KEPT, state, expires, lease, policy))
    db.execute("SELECT fill('locked', 1, 'succeeded', '-2 h', NULL, 'unknown')")
    db.execute("VACUUM ANALYZE idem_record")


# ---------------------------------------------------------------------------
# Sweepers
# ---------------------------------------------------------------------------

def sweep(number, start, clients_done):
    """Sweep until there is nothing left and no more traffic, or until it fails.

    Returns the sum of what was deleted, the batches, the errors, and every
    count of unresolved records that was told.
    """
    rng = random.Random(f"{tap.SEED}/sweep/{number}")
    deleted, batches, errors, unresolved = 0, 0, collections.Counter(), set()
    with connect(options="-c lock_timeout=20s") as db:
        start.wait()
        while True:
            last = clients_done.value == CLIENTS
            try:
                with db.transaction():
                    db.execute(f"SET TRANSACTION ISOLATION LEVEL {rng.choice(LEVELS)}")
                    row = db.execute("SELECT * FROM idem_sweep(%s)", (BATCH,)).fetchone()
            except psycopg.Error as error:
                errors[error.sqlstate] += 1
                return deleted, batches, errors, unresolved
            deleted, batches = deleted + row[0], batches + (row[0] > 0)
            unresolved.add(row[1])
            if last and not row[2]:
                return deleted, batches, errors, unresolved


# ---------------------------------------------------------------------------
# Traffic
# ---------------------------------------------------------------------------

TRANSACTIONAL = """
    WITH c AS MATERIALIZED (SELECT outcome, attempt, token FROM idem_claim(%(scope)s, %(key)s,
             request => to_jsonb(%(key)s::text), ttl => '1 day', wait => '10 s')),
    e AS (INSERT INTO effect SELECT %(scope)s || '/' || %(key)s, attempt FROM c
          WHERE outcome = 'claimed')
    SELECT outcome, NULL, CASE WHEN outcome = 'claimed' THEN
        idem_finish(%(scope)s, %(key)s, token => token, response_body => %(key)s) END FROM c"""

# The lease outlives the ttl by far.
LEASED = """
    SELECT outcome, token FROM idem_claim(%(scope)s, %(key)s, request => to_jsonb(%(key)s::text),
        ttl => '1 ms', lease => '1 hour', on_abandon => %(policy)s)"""


class Client:
    def __init__(self, number):
        self.rng = random.Random(f"{tap.SEED}/client/{number}")
        self.db = connect()
        self.outcomes, self.errors = collections.Counter(), collections.Counter()
        self.owned = []                 # (scope, key, token) of leased claims

    def pick(self):
        """A key that is about to be swept; all clients pick from the same few."""
        kind = self.rng.choice(tuple(DEAD))
        return kind, f"key-{self.rng.randrange(1, min(number_of(kind), 2000) + 1)}"

    def run(self):
        for _ in range(tap.scaled(CLAIMS)):
            scope, key = self.pick()
            leased = int(key[4:]) % 4 == 0      # so that a key is one or the other for all
            try:
                self.claim(scope, key, leased)
            except psycopg.Error as error:
                self.errors[error.sqlstate] += 1
        self.db.close()
        return self.outcomes, self.errors, self.owned

    def claim(self, scope, key, leased):
        with self.db.transaction():
            self.db.execute(f"SET TRANSACTION ISOLATION LEVEL {self.rng.choice(LEVELS)}")
            outcome, token, *_ = self.db.execute(
                LEASED if leased else TRANSACTIONAL,
                {"scope": scope, "key": key, "policy": self.rng.choice(("unknown", "retry"))}
            ).fetchone()
        self.outcomes["leased" if leased else "transactional", outcome] += 1
        if leased and outcome == "claimed":
            self.owned.append((scope, key, token))


def traffic(number, start, clients_done):
    client = Client(number)
    start.wait()
    try:
        return client.run()
    finally:
        with clients_done.get_lock():
            clients_done.value += 1


# ---------------------------------------------------------------------------
# The verdict
# ---------------------------------------------------------------------------

def updates(db):
    """Updates of the table so far: finishes, and claims that replaced a record in place."""
    db.execute("SELECT pg_stat_clear_snapshot()")
    return db.execute("SELECT n_tup_upd FROM pg_stat_user_tables "
                      "WHERE relid = 'idem_record'::regclass").fetchone()[0]


def judge_sums(db, swept, outcomes):
    """Expired = deleted + replaced in place.  The server's counts arrive a little late."""
    expired = sum(number_of(kind) for kind in DEAD)
    deleted = sum(count for count, *_ in swept)
    finishes = outcomes["transactional", "claimed"]
    patience = time.monotonic() + PATIENCE
    while updates(db) - finishes < expired - deleted and time.monotonic() < patience:
        time.sleep(0.05)
    replaced = updates(db) - finishes
    tap.note(f"{expired} expired: {deleted} deleted (" + " + ".join(
        f"{count} in {batches} batches" for count, batches, *_ in swept)
        + f"), {replaced} replaced in place")
    tap.equal(deleted + replaced, expired, "each expired record was deleted once or replaced once")


def judge_records(db, outcomes, owned):
    for kind in ALIVE:
        tap.equal(db.execute("SELECT count(*) FROM idem_record WHERE scope = %s",
                             (kind,)).fetchone()[0], KEPT, f"no record that is {kind} was lost")
    tap.equal(len({claim[:2] for claim in owned}), len(owned), "no key was leased twice")
    tap.equal(db.execute("SELECT count(*), count(DISTINCT key) FROM effect").fetchone(),
              (outcomes["transactional", "claimed"],) * 2, "no key was claimed twice")
    tap.equal(db.execute("SELECT count(*) FROM idem_record WHERE scope = ANY (%s)",
                         (list(DEAD),)).fetchone()[0],
              len(owned) + outcomes["transactional", "claimed"],
              "of the expired keys, those claimed anew have a record and no other has")
    tap.equal([claim for claim in owned
               if not db.execute("SELECT idem_finish(%s, %s, token => %s)", claim).fetchone()[0]],
              [], "every lease that outlived its ttl was still owned, and could finish")


def judge(db, swept, clients):
    outcomes = sum((client[0] for client in clients), collections.Counter())
    errors = sum((client[1] for client in clients), collections.Counter())
    errors += sum((errors for _, _, errors, _ in swept), collections.Counter())
    owned = list(itertools.chain.from_iterable(client[2] for client in clients))
    tap.note(", ".join(f"{n} {kind} {what}" for (kind, what), n in sorted(outcomes.items())))
    tap.equal(dict(errors), {}, "no sweep and no claim failed")
    tap.equal({what for _, what in outcomes} - {"claimed", "replayed", "in_progress"}, set(),
              "claims were told claimed, replayed or in_progress")
    tap.equal(set().union(*(told for *_, told in swept)), {KEPT * len(UNRESOLVED)},
              "every sweep counted the unresolved records right")
    tap.ok(all(batches > 1 for _, batches, *_ in swept), "both sweepers had work")
    tap.equal(db.execute("SELECT deleted, more FROM idem_sweep()").fetchone(), (1, False),
              "the record that was locked meanwhile is left to sweep, and nothing else")
    judge_sums(db, swept, outcomes)
    judge_records(db, outcomes, owned)


def main():
    tap.begin()
    with psycopg.connect("", autocommit=True) as db:
        db.execute(SETUP)
        fill(db)
        start = multiprocessing.Barrier(SWEEPERS + CLIENTS)
        clients_done = multiprocessing.Value("i", 0)
        with db.transaction():
            db.execute("SELECT FROM idem_record WHERE scope = 'locked' FOR UPDATE")
            results = in_parallel(
                [(sweep, n, start, clients_done) for n in range(SWEEPERS)]
                + [(traffic, n, start, clients_done) for n in range(CLIENTS)])
        judge(db, results[:SWEEPERS], results[SWEEPERS:])
    tap.finish()


if __name__ == "__main__":
    main()
