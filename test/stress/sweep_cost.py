#!/usr/bin/python3
"""What a sweep costs follows the expired records, not the size of the table.

The same number of expired records is swept beside more and more live ones,
and the server's own counters tell how many buffers of the table and its
indexes each deleted record took.  Ten and a hundred times as many live
records may not make that much more.  (Times are printed and not judged.)

STRESS_SCALE=50 is the full measurement: 1,000,000 expired records beside
10,000, 100,000 and 1,000,000 live ones.
"""

import time

import psycopg

from lib import tap

EXPIRED = 20_000
LIVE = (200, 2_000, 20_000)
MOST = 1.5              # buffers per record, relative to the smallest table

# Written as SQL, which is the quickest way to have many: what is measured is the sweep.
RECORDS = """
INSERT INTO idem_record (scope, key, principal, state, attempt, token, created_at, claimed_at,
    expires_at, ttl, on_abandon, recovered, progressed, finished_at, response_code, response_body)
SELECT 'sweep', %(kind)s || md5(n::text), '', 'succeeded', 1, gen_random_uuid(), clock_timestamp(),
    clock_timestamp(), clock_timestamp() + %(left)s, '1 day', 'unknown', false, false,
    clock_timestamp(), 201, '{"order": 1}'
FROM generate_series(1, %(count)s) n ORDER BY md5(n::text || 'x')
"""

BUFFERS = """
SELECT heap_blks_hit + heap_blks_read + idx_blks_hit + idx_blks_read
FROM pg_statio_user_tables WHERE relid = 'idem_record'::regclass
"""


def buffers(conn):
    conn.execute("SELECT pg_stat_force_next_flush()")
    conn.execute("SELECT pg_stat_clear_snapshot()")
    return conn.execute(BUFFERS).fetchone()[0]


def measure(conn, expired, live):
    """Buffers for each record deleted, and seconds for all of them."""
    conn.execute("TRUNCATE idem_record")
    conn.execute(RECORDS, dict(kind="live ", left="1 day", count=live))
    conn.execute(RECORDS, dict(kind="gone ", left="-1 hour", count=expired))
    conn.execute("VACUUM ANALYZE idem_record")
    before, start = buffers(conn), time.monotonic()
    conn.execute("CALL idem_sweep_all()")
    seconds = time.monotonic() - start
    took = (buffers(conn) - before) / expired
    left = conn.execute("SELECT count(*) FROM idem_record").fetchone()[0]
    tap.equal(left, live, f"{live:,} live records are left when {expired:,} expired ones are gone")
    tap.note(f"{live:>9,} live: {took:.2f} buffers and {seconds / expired * 1e6:.1f} us"
             f" for each of {expired:,} deleted")
    return took


def main():
    tap.begin()
    with psycopg.connect(autocommit=True) as conn:
        conn.execute("ALTER TABLE idem_record SET (autovacuum_enabled = off)")
        costs = [measure(conn, tap.scaled(EXPIRED), tap.scaled(live)) for live in LIVE]
    tap.ok(max(costs) <= costs[0] * MOST, f"no size makes it more than {MOST:g} times as much",
           [f"{live}: {cost:.2f}" for live, cost in zip(LIVE, costs)])
    tap.finish()


if __name__ == "__main__":
    main()
