"""Instructions that the server executes per call, which do not depend on load.

A second server runs under callgrind.  Each script runs in a backend of its own,
which calls a marker after a few transactions and again K transactions later:
callgrind writes its counters down, and starts again from zero, whenever it
comes by the marker.  So the second of these files holds what K transactions
cost in user space, without connecting and without first-time work.
"""

import glob
import os
import re
import signal
import subprocess
import time

from . import db
from .calls import CALLS, INSERT_FIRST, PAIRS

RECORDS = 2000
WARM = 50
MARKER = "pg_backend_pid"

# pgbench keeps a client's variables from one transaction to the next.
MARKED = """\\set i :i + 1
\\if :i = :first or :i = :last
SELECT pg_backend_pid();
\\endif
"""

# What a fingerprint adds: a claim with the request that it is for.
REQUEST = ('{"items": [{"sku": "A-1001", "quantity": 2}, {"sku": "B-2002", "quantity": 1}],'
           ' "customer": 42, "currency": "EUR", "total": 149.90}')
EXTRA = {
    "replay with a fingerprint to compute": """\\set n random(1, :records)
SELECT outcome, response_code, response_body
FROM idem_claim('order', 'key-' || :n, '42', request => '%s');
""" % REQUEST,
    "idem_once, fresh": """\\set n random(1, 9000000000000000000)
SELECT idem_once('event', 'new-' || :n, '42');
""",
    "idem_execute, fresh": """\\set n random(1, 9000000000000000000)
SELECT outcome, response_code, response_body FROM idem_execute('order', 'new-' || :n, '42',
    request => '%s', command => 'INSERT INTO orders (customer, total)
    VALUES (($1->>''customer'')::bigint, ($1->>''total'')::numeric) RETURNING id, 201');
""" % REQUEST,
    "the bare INSERT of that command": """\\set n random(1, 9000000000000000000)
INSERT INTO orders (customer, total)
SELECT (r->>'customer')::bigint, (r->>'total')::numeric
FROM (SELECT '%s'::jsonb AS r) x RETURNING id, 201;
""" % REQUEST,
}

# The same without the CHECK constraints, which the executor prepares for every statement.
EXTRA.update({"bare " + name + ", without CHECK constraints": CALLS[call].replace("bare_", "plain_")
              for name, call in (("INSERT ON CONFLICT", "bare_leased_claim"),
                                 ("INSERT + UPDATE", "bare_transaction"),
                                 ("INSERT, UPDATE, two commits", "bare_leased"))})


class Server:
    """A small cluster whose every process runs under callgrind."""

    def __init__(self):
        self.dir = os.path.join(db.WORK, "callgrind")
        self.counts = os.path.join(db.WORK, "counts")
        os.makedirs(self.counts, exist_ok=True)
        subprocess.run([db.BINDIR + "/initdb", "-D", self.dir, "-U", "postgres", "-A", "trust",
                        "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync"],
                       check=True, stdout=subprocess.DEVNULL)
        with open(self.dir + "/postgresql.conf", "a") as f:
            f.write("listen_addresses = ''\nunix_socket_directories = '%s'\nautovacuum = off\n"
                    "jit = off\nfsync = off\nmax_wal_size = 2GB\n" % self.dir)
        self.env = {"PGHOST": self.dir, "PGPORT": "65433", "PGDATABASE": "postgres"}

    def command(self):
        return [db.BINDIR + "/postgres", "-D", self.dir, "-p", "65433"]

    def load(self):
        """Without callgrind, which would take minutes."""
        self.start(self.command())
        old, os.environ["PGDATABASE"] = os.environ.get("PGDATABASE"), "postgres"
        saved = {k: os.environ.get(k) for k in self.env}
        os.environ.update(self.env)
        db.psql("CREATE EXTENSION idempotency")
        db.make_twin()
        db.make_twin("plain_record", "EXCLUDING CONSTRAINTS")
        db.psql(INSERT_FIRST + "CREATE TABLE orders (id bigserial PRIMARY KEY, customer bigint,"
                " total numeric)")
        for table in ("idem_record", "bare_record"):
            db.load(table, 1, RECORDS)
        db.psql("VACUUM FREEZE ANALYZE; CHECKPOINT")
        os.environ.update({k: v for k, v in saved.items() if v is not None})
        if old is None:
            del os.environ["PGDATABASE"]
        self.stop()

    def start(self, command):
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL,
                                        stderr=open(self.dir + "/log", "a"))
        deadline = time.monotonic() + 120
        while subprocess.run(["pg_isready", "-q", "-h", self.dir, "-p", "65433"]).returncode != 0:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("the server under callgrind did not start; see "
                                   + self.dir + "/log")
            time.sleep(0.2)

    def start_counting(self):
        self.start(["valgrind", "--tool=callgrind", "-q", "--dump-before=" + MARKER,
                    "--callgrind-out-file=%s/%%p" % self.counts, *self.command()])

    def stop(self):
        self.process.send_signal(signal.SIGINT)
        self.process.wait(timeout=120)

    def count(self, script, calls):
        """Instructions per transaction of the script."""
        before = set(glob.glob(self.counts + "/*"))
        first = WARM + 1
        db.pgbench(db.script(MARKED + script), 1, transactions=first + calls, server=self.env,
                   options=("-D", "records=%d" % RECORDS, "-D", "i=0", "-D", "first=%d" % first,
                            "-D", "last=%d" % (first + calls)))
        second = [f for f in set(glob.glob(self.counts + "/*")) - before if f.endswith(".2")]
        return total(second[0]) / calls


def total(path):
    with open(path, errors="replace") as f:
        return int(re.search(r"^(?:totals|summary): (\d+)", f.read(), re.MULTILINE).group(1))


def run(size, say):
    server = Server()
    server.load()
    server.start_counting()
    counts = {}
    try:
        for name, text in {**CALLS, **EXTRA}.items():
            counts[name] = server.count(text, size.calls)
            say("%s: %d" % (name, counts[name]))
    finally:
        server.stop()
    return {"calls": size.calls, "counts": counts,
            "rows": [{"name": name, "ours": counts[ours], "bare": counts[bare],
                      "ratio": counts[bare] / counts[ours]}
                     for name, ours, bare, _, _ in PAIRS],
            "others": {name: counts[name] for name in EXTRA}}
