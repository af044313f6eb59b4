"""Bytes of WAL and of disk per record, and what each column and index costs.

WAL is counted without full-page images, whose number depends on how often the
server makes a checkpoint; each transaction's commit record is included.
"""

from . import db
from .calls import CALLS, NEW, PLAIN_INSERT, LEASED_INSERT

WAYS = {
    "claim + finish in one transaction": CALLS["transaction"],
    "the same by INSERT + UPDATE": CALLS["bare_transaction"],
    "leased claim, commit": CALLS["leased_claim"],
    "leased claim, commit, finish, commit": CALLS["leased"],
    "the same by INSERT, UPDATE": CALLS["bare_leased"],
    "idem_once": NEW + "SELECT idem_once('event', 'new-' || :n, '42');\n",
    "replay": CALLS["replay"],
}

INDEXES = ["bare_record_pkey", "bare_record_sweep_at_idx", "bare_record_lease_expires_at_idx"]


def run(size, say):
    db.psql("ALTER SYSTEM SET full_page_writes = off; SELECT pg_reload_conf()", "postgres")
    try:
        return measure(size, say)
    finally:
        db.psql("ALTER SYSTEM RESET full_page_writes; SELECT pg_reload_conf()", "postgres")


def start():
    db.psql("TRUNCATE idem_record; DROP TABLE IF EXISTS bare_record")
    db.make_twin()
    db.load("idem_record", 1, 1000)


def wal(sql_or_script, n):
    """WAL bytes per transaction of a pgbench script, on tables that have their first pages."""
    path = db.script(sql_or_script)
    options = ("-D", "records=1000")
    db.pgbench(path, 1, transactions=max(100, n // 20), options=options, settings=FAST)
    before = db.value("SELECT pg_current_wal_insert_lsn()")
    db.pgbench(path, 1, transactions=n, options=options, settings=FAST)
    return db.number("SELECT pg_current_wal_insert_lsn() - '%s'" % before) / n


FAST = "-c synchronous_commit=off -c idempotency.durable_claims=off"


def measure(size, say):
    n = size.records
    db.fresh_database("bench_bytes")
    ways, indexes = [], []
    for name, script in WAYS.items():
        start()
        ways.append({"name": name, "wal": wal(script, n)})
    start()
    db.load("idem_record", 1001, 1000 + n, ttl="-1 hour")
    before = db.value("SELECT pg_current_wal_insert_lsn()")
    deleted = db.number("SELECT deleted FROM idem_sweep(%d)" % n)
    ways.append({"name": "sweep of one record", "wal": db.number(
        "SELECT pg_current_wal_insert_lsn() - '%s'" % before) / deleted})
    for dropped in [None] + INDEXES:
        start()
        if dropped:
            db.psql("ALTER TABLE bare_record DROP CONSTRAINT %s" % dropped if "pkey" in dropped
                    else "DROP INDEX %s" % dropped)
        indexes.append({"without": dropped,
                        "transactional": wal(NEW + PLAIN_INSERT + ";\n", n),
                        "leased": wal(NEW + LEASED_INSERT + ";\n", n)})
    say("WAL done")
    return {"records": n, "ways": ways, "indexes": indexes, **disk(n),
            "fillfactors": [filled(n, response, percent) for response in RESPONSES
                            for percent in (100, 95, 90, 85, 80, 70)]}


def filled(n, response, percent):
    """What a fillfactor does to eight clients that claim and finish, in a table that only
    grows, and in one of which a sweep has taken every other record and a vacuum the space."""
    db.psql("TRUNCATE idem_record")
    shipped = db.value("SELECT option_value FROM pg_class, pg_options_to_table(reloptions)"
                       " WHERE oid = 'idem_record'::regclass AND option_name = 'fillfactor'")
    db.psql("ALTER TABLE idem_record SET (fillfactor = %d)" % percent)
    script = db.script(CALLS["transaction"].replace(db.BODY, RESPONSES[response]))
    before = db.value("SELECT pg_current_wal_insert_lsn()")
    new = hot_share(script, n)
    found = {"response": response, "fillfactor": percent, "hot": new,
             "wal": db.number("SELECT pg_current_wal_insert_lsn() - '%s'" % before) / n,
             "table": db.number("SELECT pg_relation_size('idem_record')") / n}
    db.psql("DELETE FROM idem_record WHERE hashtext(key) % 2 = 0; VACUUM idem_record")
    found["hot_reused"] = hot_share(script, n // 2)
    db.psql("ALTER TABLE idem_record SET (fillfactor = %s)" % shipped)
    return found


def hot_share(script, n):
    db.psql("SELECT pg_stat_reset_single_table_counters('idem_record'::regclass)")
    db.pgbench(script, 8, transactions=n // 8, settings=FAST)
    hot, updates = map(float, db.psql("SELECT n_tup_hot_upd, n_tup_upd FROM pg_stat_user_tables"
                                      " WHERE relname = 'idem_record'")[0])
    return hot / updates


# The longer one is about as long as a row can be without being compressed or moved out of line.
RESPONSES = {80: db.BODY, 1600: "".join("%08x" % (n * 2654435761 % 2**32) for n in range(200))}


def disk(n):
    """Of records that were claimed in random order, finished and vacuumed."""
    start()
    db.psql("TRUNCATE idem_record")
    db.pgbench(db.script(CALLS["transaction"]), 1, transactions=n, settings=FAST)
    db.psql("VACUUM ANALYZE idem_record")
    columns = [r[0] for r in db.psql(
        "SELECT attname FROM pg_attribute WHERE attrelid = 'idem_record'::regclass AND attnum > 0"
        " ORDER BY attnum")]
    averages = db.psql("SELECT %s FROM idem_record" % ", ".join(
        "coalesce(avg(pg_column_size(%s)), 0)::float8" % c for c in columns))[0]
    sizes = db.psql("""
        SELECT 'table, with its maps', pg_table_size('idem_record') / %(n)d.0
        UNION ALL SELECT indexrelid::regclass::text, pg_relation_size(indexrelid) / %(n)d.0
        FROM pg_index WHERE indrelid = 'idem_record'::regclass
        UNION ALL SELECT 'row as stored, without fillfactor', avg(pg_column_size(r)) + 4
        FROM idem_record r""" % {"n": n})
    return {"columns": [[c, float(a)] for c, a in zip(columns, averages) if float(a) > 0],
            "disk": [[name, float(size)] for name, size in sizes]}
