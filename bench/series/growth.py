"""Does the size of the table matter?  Claim, replay and sweep at several sizes.

The tables stand side by side, each in a database of its own, and the sizes take
turns.  New keys fall between the old ones all over the index, and what expires
is strewn all over the table, which is the worst case for a sweep.
"""

import os
import threading

from . import db
from .stats import paired, summary

SCRIPTS = {
    "replay": "\\set n random(1, :records)\nSELECT outcome, response_code, response_body"
              " FROM idem_claim('order', 'key-' || :n, '42');\n",
    "claim + finish": """\\set n random(1000000000000000000, 9000000000000000000)
BEGIN;
SELECT outcome, token FROM idem_claim('order', 'key-' || :n, '42');
SELECT idem_finish('order', 'key-' || :n, '42', response_code => 201, response_body => '%s');
COMMIT;
""" % db.BODY,
}
BATCH = 500
SWEEP = "SELECT deleted FROM idem_sweep(%d);\n" % BATCH
FAST = "-c synchronous_commit=off"


def database(n):
    return "bench_growth_%d" % n


def prepare(n, say):
    db.fresh_database(database(n))
    half = n // 2
    parts = [threading.Thread(target=db.load, args=("idem_record", first, last))
             for first, last in ((1, half), (half + 1, n))]
    for part in parts:
        part.start()
    for part in parts:
        part.join()
    db.psql("VACUUM (FREEZE, ANALYZE) idem_record; CHECKPOINT")
    if db.number("SELECT count(*) FROM idem_record") != n:
        raise RuntimeError("the records were not loaded")
    say("%d records: %s" % (n, db.value(
        "SELECT pg_size_pretty(pg_total_relation_size('idem_record'))")))


def expire(n, rows):
    """Let so many records all over the table expire."""
    db.psql("DROP TABLE IF EXISTS victim; CREATE TABLE victim AS SELECT DISTINCT"
            " floor(random() * %d + 1)::bigint AS n FROM generate_series(1, %d);"
            "ANALYZE victim; UPDATE idem_record r SET expires_at = now() - interval '1 hour'"
            " FROM victim v WHERE r.scope = 'order' AND r.principal = '42'"
            " AND r.key = 'key-' || v.n" % (n, rows * 3))
    return int(db.number("SELECT count(*) FROM victim"))


def restore():
    """Put those that were swept back, for the next round."""
    db.psql("VACUUM idem_record")
    db.psql(db.SETTLED.format(table="idem_record", prefix="key-", ttl="30 days", body=db.BODY,
                              first=1, last=1).replace("FROM generate_series(1::bigint, 1::bigint) n",
                                                       "FROM victim ON CONFLICT DO NOTHING"))


def measure(n, size):
    os.environ["PGDATABASE"] = database(n)
    found = {}
    for name, text in SCRIPTS.items():
        path, options = db.script(text), ("-D", "records=%d" % n)
        db.pgbench(path, 1, seconds=1, options=options, settings=FAST)
        found[name] = db.pgbench(path, 1, seconds=size.seconds, options=options,
                                 settings=FAST)["latency"] * 1000
    batches = expire(n, size.expired) // BATCH
    found["sweep, per record"] = db.pgbench(db.script(SWEEP), 1, transactions=batches,
                                            settings=FAST)["latency"] * 1000 / BATCH
    db.psql("SELECT idem_sweep(%d)" % (3 * size.expired))
    restore()
    return found


def run(size, say):
    for n in size.sizes:
        prepare(n, say)
    times = {n: [] for n in size.sizes}
    for turn in range(size.rounds):
        for n in size.sizes if turn % 2 == 0 else reversed(size.sizes):
            times[n].append(measure(n, size))
            db.psql("VACUUM idem_record; CHECKPOINT")
        say("round %d of %d" % (turn + 1, size.rounds))
    for n in size.sizes:
        db.psql("DROP DATABASE %s WITH (FORCE)" % database(n), "postgres")
    rows = []
    for name in times[size.sizes[0]][0]:
        at = {n: [t[name] for t in times[n]] for n in size.sizes}
        rows.append({"name": name, "us": {str(n): summary(at[n]) for n in size.sizes},
                     "ratio": paired(at[size.sizes[-1]], at[size.sizes[0]])})
    return {"sizes": size.sizes, "expired": size.expired, "rows": rows}
