"""The server under measurement: psql, pgbench, and the tables compared.

The bare table is a twin of idem_record: same columns, same indexes, same
constraints, same storage parameters.  What differs is who writes it, the
extension or plain SQL.
"""

import os
import re
import subprocess
import tempfile

WORK = os.environ["BENCH_WORK"]
BINDIR = os.environ["PG_BINDIR"]


def psql(sql, database=None, server=None):
    """Run statements, one by one, and return the rows of all as lists of strings."""
    command = ["psql", "-XAtq", "-F", "\t", "-v", "ON_ERROR_STOP=1"]
    if database:
        command += ["-d", database]
    done = subprocess.run(command, input=sql, text=True, capture_output=True,
                          env=dict(os.environ, **(server or {})))
    if done.returncode != 0:
        raise RuntimeError("psql: %s\n%s" % (done.stderr.strip(), sql[:500]))
    return [line.split("\t") for line in done.stdout.splitlines()]


class Session:
    """A connection that stays, for what a job of the application repeats."""

    END = "-- end --"

    def __init__(self):
        self.process = subprocess.Popen(
            ["psql", "-XAtq", "-v", "ON_ERROR_STOP=1"], text=True, bufsize=1,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def run(self, statement):
        self.process.stdin.write("%s;\n\\echo '%s'\n" % (statement, self.END))
        said = []
        for line in self.process.stdout:
            if line.rstrip("\n") == self.END:
                return
            said.append(line)
        raise RuntimeError("psql: %s\n%s" % ("".join(said).strip(), statement))

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def value(sql, database=None):
    return psql(sql, database)[-1][0]


def number(sql, database=None):
    return float(value(sql, database))


def fresh_database(name):
    """A database with the extension, made the default of all that follows."""
    psql("DROP DATABASE IF EXISTS %s WITH (FORCE)" % name, "postgres")
    psql("CREATE DATABASE %s" % name, "postgres")
    os.environ["PGDATABASE"] = name
    psql("CREATE EXTENSION idempotency")


def make_twin(name="bare_record", but=""):
    options = value("SELECT array_to_string(reloptions, ', ') FROM pg_class"
                    " WHERE oid = 'idem_record'::regclass")
    psql("CREATE TABLE %s (LIKE idem_record INCLUDING ALL %s) WITH (%s)" % (name, but, options))


BODY = '{"order_id": 1234567, "status": "created", "total": "149.90", "currency": "EUR"}'

# One settled record per number: what a million finished orders leave behind.
SETTLED = """
INSERT INTO {table} (scope, key, principal, state, attempt, token, created_at, claimed_at,
    expires_at, ttl, on_abandon, recovered, progressed, finished_at, response_code, response_body)
SELECT 'order', '{prefix}' || n, '42', 'succeeded', 1, gen_random_uuid(), now(), now(),
    now() + interval '{ttl}', '24 hours', 'unknown', false, false, now(), 201, '{body}'
FROM generate_series({first}::bigint, {last}::bigint) n;
"""


def load(table, first, last, prefix="key-", ttl="30 days"):
    psql(SETTLED.format(table=table, first=first, last=last, prefix=prefix, ttl=ttl, body=BODY))


def script(text):
    """A pgbench script in a file; returns its path."""
    with tempfile.NamedTemporaryFile("w", suffix=".sql", dir=WORK, delete=False) as f:
        f.write(text)
    return f.name


def pgbench(path, clients, seconds=None, transactions=None, settings="", options=(), server=None):
    """Run one script, prepared; returns tps and the average latency in ms."""
    command = ["pgbench", "-n", "-M", "prepared", "-f", path, "-c", str(clients),
               "-j", str(min(clients, 2)), *options]
    command += ["-T", str(seconds)] if seconds else ["-t", str(transactions)]
    environment = dict(os.environ, PGOPTIONS=settings, **(server or {}))
    done = subprocess.run(command, text=True, capture_output=True, env=environment)
    if done.returncode != 0:
        raise RuntimeError("pgbench: %s" % done.stderr.strip()[-2000:])
    failed = re.search(r"number of failed transactions: (\d+)", done.stdout)
    if failed and int(failed.group(1)) > 0:
        raise RuntimeError("pgbench: failed transactions\n" + done.stdout)
    return {"tps": float(re.search(r"tps = ([\d.]+)", done.stdout).group(1)),
            "latency": float(re.search(r"latency average = ([\d.]+)", done.stdout).group(1))}
