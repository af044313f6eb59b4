#!/usr/bin/python3
"""The finish of a transactional claim is a HOT update.

pgbench runs claim + finish with stored responses of realistic sizes.  Counted
by the server's own statistics, at least 95 % of the finishes must find room in
the page of their claim: in a new table, and also once a vacuum has told the
inserts of pages that have some room left.  Such a page takes in a claim if the
fillfactor's reserve stays free, so the reserve must be what a response needs.
Vacuums come at fixed points; autovacuum would make the result depend on when.

STRESS_SWEEP_FILLFACTOR=1 measures instead what a fillfactor costs and brings:
for each the share of HOT updates, the table's size per record, and the
throughput relative to the first.  Throughput is worth reading on an idle
machine only.
"""

import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

import psycopg

from lib import tap

CLIENTS = 8
PAIRS = 6000                            # claim + finish, for each body size
SIZES = (100, 500, 2000)                # bytes of the stored body
LEAST_HOT = 95.0                        # per cent
FILLFACTORS = (70, 75, 80, 85, 90, 95, 100)
VACUUMS = 3                             # during a measurement
PATIENCE = 60

# Bodies as an API sends them: JSON with names that repeat and values that do not.
SETUP = "CREATE TABLE body (size int, n int, text text, PRIMARY KEY (size, n))"
BODIES = """
INSERT INTO body
SELECT size, n, left(
    (SELECT json_agg(json_build_object('id', gen_random_uuid(), 'status', 'created',
                'amount', (random() * 100000)::int, 'note', md5(random()::text || n || i)))::text
     FROM generate_series(1, 40) i), size)
FROM unnest(%s::int[]) size, generate_series(1, 200) n
"""

SCRIPT = """
\\set body random(1, 200)
SELECT gen_random_uuid() AS key, text FROM body WHERE size = {size} AND n = :body \\gset
BEGIN;
SELECT token FROM idem_claim('hot', :key, request => '{{"amount": 1200, "currency": "EUR"}}') \\gset
SELECT idem_finish('hot', :key, token => :token, response_code => 201, response_body => :text,
    response_headers => '{{"location": "/orders/1", "content-type": "application/json"}}');
COMMIT;
"""


class Measured(NamedTuple):
    updates: int
    new: float              # per cent HOT before the first vacuum
    vacuumed: float         # and after it
    per_record: float       # bytes of table
    speed: float            # pairs per second


def program(name):
    """A client program of the server's version: the PATH's, or beside pg_config."""
    found = shutil.which(name)
    if found is None:
        bindir = subprocess.check_output(["pg_config", "--bindir"], text=True)
        found = os.path.join(bindir.strip(), name)
    return found


def pgbench(size, pairs):
    """Run the pairs; transactions per second."""
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as script:
        script.write(SCRIPT.format(size=size))
        script.flush()
        run = subprocess.run(
            [program("pgbench"), "--no-vacuum", "--protocol=prepared", "--jobs=2",
             f"--client={CLIENTS}", f"--transactions={pairs // CLIENTS}",
             f"--random-seed={tap.SEED}",
             f"--file={script.name}"], capture_output=True, text=True, check=False)
    if run.returncode != 0:
        tap.note(run.stderr)
        sys.exit("pgbench failed")
    return float(re.search(r"tps = ([0-9.]+)", run.stdout).group(1))


def counters(db):
    """Updates and HOT updates so far, once the server has counted them."""
    db.execute("SELECT pg_stat_clear_snapshot()")
    return db.execute("""SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables
                         WHERE relid = 'idem_record'::regclass""").fetchone()


def counters_after(db, updates):
    patience = time.monotonic() + PATIENCE
    while counters(db)[0] < updates and time.monotonic() < patience:
        time.sleep(0.05)
    return counters(db)


def run_counted(db, size, pairs):
    """Run the pairs: updates, HOT updates, transactions per second."""
    before = counters(db)
    speed = pgbench(size, pairs)
    after = counters_after(db, before[0] + pairs // CLIENTS * CLIENTS)
    return after[0] - before[0], after[1] - before[1], speed


def measure(db, size, pairs, fillfactor=None):
    """In a new table, and in one that is vacuumed now and then."""
    db.execute("TRUNCATE idem_record")
    if fillfactor:
        db.execute(f"ALTER TABLE idem_record SET (fillfactor = {fillfactor})")
    runs = []
    for _ in range(VACUUMS + 1):
        runs.append(run_counted(db, size, pairs // (VACUUMS + 1)))
        db.execute("VACUUM idem_record")
    table = db.execute("SELECT pg_table_size('idem_record')").fetchone()[0]
    updates, hot, speeds = zip(*runs)
    return Measured(sum(updates), 100 * hot[0] / updates[0], 100 * sum(hot[1:]) / sum(updates[1:]),
                    table / sum(updates), sum(speeds) / len(speeds))


def test(db):
    pairs = tap.scaled(PAIRS, CLIENTS * (VACUUMS + 1))
    for size in SIZES:
        m = measure(db, size, pairs)
        tap.note(f"{size} bytes: {m.new:.2f} % HOT in a new table, {m.vacuumed:.2f} % in a "
                 f"vacuumed one, {m.per_record:.0f} bytes of table per record, "
                 f"{m.speed:.0f} pairs/s")
        tap.equal(m.updates, pairs // (VACUUMS + 1) // CLIENTS * CLIENTS * (VACUUMS + 1),
                  f"{size} bytes: one update for each finish")
        for where, hot in (("new", m.new), ("vacuumed", m.vacuumed)):
            tap.ok(hot >= LEAST_HOT, f"{size} bytes, {where} table: at least {LEAST_HOT:g} % "
                   "of the finishes are HOT", [f"{hot:.2f} %"])


def sweep_fillfactors(db):
    """All fillfactors in each of several rounds, so that a busy minute hurts all alike."""
    pairs, rounds = tap.scaled(PAIRS, CLIENTS * (VACUUMS + 1)), 3
    rng = random.Random(tap.SEED)
    tap.note("body  fillfactor  HOT % new  HOT % vacuumed  bytes/record  throughput")
    for size in SIZES:
        results = {fillfactor: [] for fillfactor in FILLFACTORS}
        for _ in range(rounds):
            for fillfactor in rng.sample(FILLFACTORS, len(FILLFACTORS)):
                results[fillfactor].append(measure(db, size, pairs, fillfactor))
        best = {f: max(m.speed for m in runs) for f, runs in results.items()}
        for fillfactor, runs in results.items():
            mean = Measured(*(sum(column) / rounds for column in zip(*runs)))
            tap.note(f"{size:4d}  {fillfactor:10d}  {mean.new:9.2f}  {mean.vacuumed:14.2f}  "
                     f"{mean.per_record:12.0f}  {best[fillfactor] / best[FILLFACTORS[0]]:10.3f}")
    tap.ok(True, "measured")


def main():
    tap.begin()
    with psycopg.connect("", autocommit=True) as db:
        db.execute(SETUP)
        db.execute(BODIES, (list(SIZES),))
        db.execute("VACUUM ANALYZE body")
        db.execute("ALTER TABLE idem_record SET (autovacuum_enabled = off)")
        if os.environ.get("STRESS_SWEEP_FILLFACTOR"):
            sweep_fillfactors(db)
        else:
            test(db)
    tap.finish()


if __name__ == "__main__":
    main()
