#!/usr/bin/python3
"""What the views cost does not grow with the table.

The same records in flight stand beside more and more settled ones, and the
plan tells how many buffers idem_stats touched: no more beside the most than
the sample allows, and no sequential scan, whether the table was analyzed or
not.  The estimates are held against the truth.

MONITOR_SCALE=25 goes up to a million records.
"""

import json
import os

import psycopg

from common import tap

SCALE = float(os.environ.get("MONITOR_SCALE") or 1)
SIZES = [round(40_000 * SCALE * factor) for factor in (1, 4)]
SAMPLE = 1000           # pages, on the average; over 4 standard deviations more are allowed
MOST = SAMPLE + 150
IN_FLIGHT = 200
OFF = 0.15              # by how much an estimate may miss

# As traffic of three operations leaves them, the latest last.
RECORDS = """
INSERT INTO idem_record (scope, key, principal, state, attempt, token, created_at, claimed_at,
    expires_at, ttl, on_abandon, recovered, progressed, finished_at, response_code, response_body)
SELECT CASE WHEN n %% 10 < 7 THEN 'order' WHEN n %% 10 < 9 THEN 'charge' ELSE 'refund' END,
    md5(n::text), '', CASE WHEN n %% 4 = 3 THEN 'failed' ELSE 'succeeded' END, 1, gen_random_uuid(),
    now(), now(), now() + interval '1 day', '1 day', 'unknown', n %% 20 = 0, false,
    now(), 201, '{"order": ' || n || '}'
FROM generate_series(%(first)s::int, %(last)s::int) n
"""
LEASED = """
SELECT idem_claim(CASE WHEN n %% 2 = 0 THEN 'charge' ELSE 'rare' END, 'leased ' || n,
    lease => '1 h', on_abandon => CASE WHEN n %% 8 < 2 THEN 'retry' ELSE 'unknown' END)
FROM generate_series(1, %(count)s) n
"""


def plan_of(conn, query):
    """Buffers touched, and the nodes of the plan."""
    explain = "EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) "
    top = conn.execute(explain + query).fetchone()[0][0]["Plan"]
    nodes, left = [], [top]
    while left:
        node = left.pop()
        nodes.append(node)
        left += node.get("Plans", [])
    return top["Shared Hit Blocks"] + top["Shared Read Blocks"], nodes


def check_cost(conn, view, most, size, when):
    buffers, nodes = plan_of(conn, f"SELECT * FROM {view}")
    what = f"{view} beside {size:,} records, {when}"
    tap.note(f"{what}: {buffers} buffers")
    tap.ok(buffers <= most, f"{what}: at most {most} buffers",
           [f"{buffers}", json.dumps(nodes)[:4000]])
    tap.equal([n["Node Type"] for n in nodes if n["Node Type"] == "Seq Scan"], [],
              f"{what}: no sequential scan")


TRUTH = """
SELECT s.scope, succeeded_estimate, succeeded, failed_estimate, failed,
    recovered_estimate, recovered
FROM idem_stats s JOIN (
    SELECT scope, count(*) FILTER (WHERE state = 'succeeded') AS succeeded,
        count(*) FILTER (WHERE state = 'failed') AS failed,
        count(*) FILTER (WHERE recovered) AS recovered
    FROM idem_record GROUP BY scope) t USING (scope)
ORDER BY s.scope
"""


def check_estimates(conn, size):
    rows = conn.execute(TRUTH).fetchall()
    tap.equal([row[0] for row in rows], ["charge", "order", "rare", "refund"],
              f"{size:,} records: every scope is there, also one without a settled record")
    off = [f"{row[0]}: {estimate} for {true}" for row in rows
           for estimate, true in zip(row[1::2], row[2::2])
           if true > 2000 and abs(estimate - true) > OFF * true]
    tap.ok(not off, f"{size:,} records: no estimate of more than 2,000 misses by {OFF:.0%}", off)
    exact = conn.execute("SELECT scope, leased, abandoned, retryable, unresolved FROM idem_stats"
                         " WHERE leased > 0 ORDER BY scope").fetchall()
    quarter, eighth = IN_FLIGHT // 4, IN_FLIGHT // 8
    tap.equal(exact, [("charge", quarter, quarter, eighth, eighth),
                      ("rare", quarter, quarter, eighth, eighth)],
              f"{size:,} records: what is in flight is exact")


def main():
    with psycopg.connect(autocommit=True) as conn:
        conn.execute("ALTER TABLE idem_record SET (autovacuum_enabled = off)")
        conn.execute(LEASED, dict(count=IN_FLIGHT))
        conn.execute("UPDATE idem_record SET lease_expires_at = clock_timestamp() - interval '1 h'"
                     " WHERE substr(key, 8)::int % 4 < 2")
        there = 0
        for size in SIZES:
            conn.execute(RECORDS, dict(first=there + 1, last=size))
            there = size
            for when in ("not analyzed", "analyzed"):
                if when == "analyzed":
                    conn.execute("VACUUM ANALYZE idem_record")
                check_cost(conn, "idem_stats", MOST + 3 * IN_FLIGHT, size, when)
                check_cost(conn, "idem_health", 3 * IN_FLIGHT, size, when)
            check_estimates(conn, size)
    tap.finish()


if __name__ == "__main__":
    main()
