"""Steady state: claims at a fixed rate, sweeps that must keep up, autovacuum on.

The application claims and finishes in one transaction, with a commit that is
durable; another session calls idem_sweep_all every few seconds.  Sizes are sampled
all along, and every transaction's latency is logged.
"""

import bisect
import glob
import os
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from . import db
from .calls import CALLS
from .stats import quantile


def run(size, say):
    db.fresh_database("bench_steady")
    db.psql("ALTER SYSTEM SET autovacuum = on; ALTER SYSTEM SET autovacuum_naptime = '%s';"
            "SELECT pg_reload_conf()" % size.naptime, "postgres")
    try:
        samples, sweeps, transactions = load(size, say)
        left = int(db.number("SELECT count(*) FROM idem_record"))
        live = live_size()
        capacity = sweep_capacity(size)
    finally:
        db.psql("ALTER SYSTEM RESET autovacuum; ALTER SYSTEM RESET autovacuum_naptime;"
                "SELECT pg_reload_conf()", "postgres")
    during, without = split(transactions, sweeps)
    late = [s for s in samples if s["at"] > size.seconds / 2]
    return {
        "seconds": size.seconds, "rate": size.rate, "ttl": size.ttl, "sweep": size.sweep,
        "batch": size.batch, "pause": size.pause,
        "naptime": size.naptime, "samples": samples, "live": live, "transactions": len(transactions),
        "table_most": max(s["table"] for s in late), "index_most": max(s["indexes"] for s in late),
        "p99_during": quantile(during, 0.99) if during else None,
        "p99_without": quantile(without, 0.99),
        "p50_during": quantile(during, 0.5) if during else None,
        "p50_without": quantile(without, 0.5), "n_during": len(during),
        "swept": len(transactions) - left, "sweeps": len(sweeps),
        "sweep_share": sum(end - begin for begin, end in sweeps) / size.seconds,
        "capacity": capacity, "backlog": size.backlog,
    }


def load(size, say):
    prefix = os.path.join(db.WORK, "steady")
    script = CALLS["transaction"].replace("'42')", "'42', ttl => '%d s')" % size.ttl)
    client = subprocess.Popen(
        ["pgbench", "-n", "-M", "prepared", "-f", db.script(script), "-c", "8", "-j", "2",
         "-R", str(size.rate), "-T", str(size.seconds), "-l", "--log-prefix", prefix],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    began, samples, done = time.time(), [], threading.Event()
    with ThreadPoolExecutor(1) as pool:
        sweeper = pool.submit(sweep_until, done, size)
        try:
            while client.poll() is None:
                samples.append(sample(began))
                if len(samples) % 12 == 0:
                    say("%(at)d s: table %(table)d, indexes %(indexes)d" % samples[-1])
                try:
                    client.wait(timeout=max(0.2, size.seconds / 120))
                except subprocess.TimeoutExpired:
                    pass
        finally:
            done.set()
    if client.returncode != 0:
        raise RuntimeError("pgbench: " + client.stderr.read()[-2000:])
    return samples, sweeper.result(), logged(prefix)


def sweep_until(done, size):
    """Each sweep as (begin, end), by the wall clock."""
    sweeps = []
    session = db.Session()
    while not done.wait(size.sweep):
        begin = time.time()
        session.run("CALL idem_sweep_all(%d, '%s')" % (size.batch, size.pause))
        sweeps.append((begin, time.time()))
    session.close()
    return sweeps


def sample(began):
    table, indexes = db.psql("SELECT pg_table_size('idem_record'), pg_indexes_size('idem_record')")[0]
    return {"at": round(time.time() - began, 1), "table": int(table), "indexes": int(indexes)}


def logged(prefix):
    """(end, latency in ms) of every transaction."""
    found = []
    for path in glob.glob(prefix + ".*"):
        with open(path) as f:
            for line in f:
                fields = line.split()
                found.append((int(fields[4]) + int(fields[5]) / 1e6, int(fields[2]) / 1000))
        os.unlink(path)
    return sorted(found)


def split(transactions, sweeps):
    """Latencies of those that met a sweep, and of the others."""
    during, without = [], []
    begins = [begin for begin, _ in sweeps]
    for end, latency in transactions:
        last = bisect.bisect_right(begins, end) - 1
        met = last >= 0 and sweeps[last][1] >= end - latency / 1000
        (during if met else without).append(latency)
    return during, without


def live_size():
    """What the live records take in a table that never held anything else."""
    db.make_twin("live_record")
    columns = ", ".join(r[0] for r in db.psql(
        "SELECT attname FROM pg_attribute WHERE attrelid = 'idem_record'::regclass"
        " AND attnum > 0 AND attgenerated = '' ORDER BY attnum"))
    db.psql("INSERT INTO live_record (%s) SELECT %s FROM idem_record WHERE expires_at > now()"
            " ORDER BY random(); VACUUM live_record" % (columns, columns))
    records, table, indexes = db.psql("SELECT count(*), pg_table_size('live_record'),"
                                      " pg_indexes_size('live_record') FROM live_record")[0]
    return {"records": int(records), "table": int(table), "indexes": int(indexes)}


def sweep_capacity(size):
    """Records per second that idem_sweep_all deletes when nothing holds it up."""
    db.psql("TRUNCATE idem_record")
    db.load("idem_record", 1, size.backlog, ttl="-1 hour")
    db.psql("VACUUM ANALYZE idem_record; CHECKPOINT")
    began = time.monotonic()
    db.psql("CALL idem_sweep_all()")
    elapsed = time.monotonic() - began
    if db.number("SELECT count(*) FROM idem_record"):
        raise RuntimeError("the sweep left something behind")
    return size.backlog / elapsed
