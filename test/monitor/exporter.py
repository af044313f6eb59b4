#!/usr/bin/python3
"""The queries file in the real exporter: what it publishes is what the views say.

prometheus-postgres-exporter logs in through the Unix socket as a role that has
the privilege set "monitor" and nothing else.  Its /metrics are read over HTTP
and compared with the records made here; then the records change, and so must
what is published.
"""

import os
import re
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

import psycopg

from common import MONITORING, tap

ROLE = "monitor_exporter"

SETUP = f"""
CREATE SCHEMA idem;
ALTER EXTENSION idempotency SET SCHEMA idem;
DROP ROLE IF EXISTS {ROLE};
CREATE ROLE {ROLE} LOGIN;
SELECT idem.idem_grant('{ROLE}', 'monitor');
ALTER ROLE {ROLE} SET search_path = idem;
SET search_path = idem;
SELECT idem_claim('charge', n::text, lease => '1 h') FROM generate_series(1, 9) n;
UPDATE idem_record SET claimed_at = claimed_at - interval '2 h' WHERE key = '9';
UPDATE idem_record SET lease_expires_at = clock_timestamp() - interval '1 h'
    WHERE key IN ('1', '2', '3');
UPDATE idem_record SET on_abandon = 'retry' WHERE key = '3';
SELECT idem_finish('charge', key, token => token,
        state => CASE key WHEN '4' THEN 'failed' ELSE 'succeeded' END)
    FROM idem_record WHERE scope = 'charge' AND key IN ('4', '5', '6');
SELECT idem_once('event "\u00e4\\"', n::text, ttl => '1 day') FROM generate_series(1, 20) n;
UPDATE idem_record SET expires_at = clock_timestamp() - interval '30 min' WHERE key IN ('15', '16');
"""

WANTED = {
    "idempotency_unresolved": 2,
    "idempotency_oldest_unresolved_seconds": 3600,
    "idempotency_leased": 3,
    "idempotency_oldest_expired_seconds": 1800,
    'idempotency_scope_leased{scope="charge"}': 3,
    'idempotency_scope_oldest_lease_seconds{scope="charge"}': 7200,
    'idempotency_scope_abandoned{scope="charge"}': 3,
    'idempotency_scope_retryable{scope="charge"}': 1,
    'idempotency_scope_unresolved{scope="charge"}': 2,
    'idempotency_scope_oldest_unresolved_seconds{scope="charge"}': 3600,
    'idempotency_scope_succeeded_estimate{scope="charge"}': 2,
    'idempotency_scope_failed_estimate{scope="charge"}': 1,
    'idempotency_scope_released_estimate{scope="charge"}': 0,
    'idempotency_scope_recovered_estimate{scope="charge"}': 0,
    'idempotency_scope_expired_estimate{scope="charge"}': 0,
    'idempotency_scope_succeeded_estimate{scope="event \\"\u00e4\\\\\\""}': 20,
    'idempotency_scope_expired_estimate{scope="event \\"\u00e4\\\\\\""}': 2,
    'idempotency_scope_leased{scope="event \\"\u00e4\\\\\\""}': 0,
}
# once what is unresolved is resolved as failed, and what is expired is swept
LATER = {
    "idempotency_unresolved": 0,
    "idempotency_oldest_unresolved_seconds": 0,
    "idempotency_oldest_expired_seconds": 0,
    'idempotency_scope_failed_estimate{scope="charge"}': 3,
}
DIRECTLY = urllib.request.build_opener(urllib.request.ProxyHandler({}))
TAKEN = "address already in use"
SECONDS = 600           # by which an age may be more than it was made


class Exporter:
    def __init__(self):
        self.log = tempfile.TemporaryFile("w+")
        self.start()

    def start(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.process = subprocess.Popen(
            ["prometheus-postgres-exporter", f"--extend.query-path={MONITORING}/queries.yaml",
             "--disable-default-metrics", "--disable-settings-metrics",
             f"--web.listen-address=127.0.0.1:{self.port}"],
            stdout=self.log, stderr=subprocess.STDOUT,
            env={**os.environ, "DATA_SOURCE_NAME":
                 "host={PGHOST} port={PGPORT} dbname={PGDATABASE} user=%s sslmode=disable"
                 .format(**os.environ) % ROLE})

    def metrics(self):
        """All that is published, without the labels that the exporter adds."""
        deadline = time.monotonic() + 60
        while True:
            try:
                with DIRECTLY.open(f"http://127.0.0.1:{self.port}/metrics") as page:
                    text = page.read().decode()
                break
            except (urllib.error.URLError, ConnectionError):
                ended = self.process.poll() is not None
                if time.monotonic() > deadline or ended and TAKEN not in self.said():
                    raise RuntimeError("the exporter did not start:\n" + self.said()) from None
                if ended:       # somebody was faster to take the port
                    self.start()
                time.sleep(0.1)
        found = re.findall(r"^(\w+)(\{.*\})? (\S+)$", text, re.MULTILINE)
        return {name + re.sub(r',?server="[^"]*"', "", labels).replace("{}", ""): float(value)
                for name, labels, value in found}

    def said(self):
        self.log.seek(0)
        return self.log.read()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=30)


def compare(published):
    for name, wanted in WANTED.items():
        have = published.get(name)
        right = have is not None and (wanted <= have < wanted + SECONDS
                                      if "_seconds" in name and wanted else have == wanted)
        tap.ok(right, name, [f"published: {have}", f"wanted: {wanted}"])


def main():
    with psycopg.connect(autocommit=True) as conn:
        conn.execute(SETUP)
        exporter = Exporter()
        try:
            published = exporter.metrics()
            compare(published)
            errors = {name: value for name, value in published.items()
                      if "error" in name and name.startswith("pg_") and value}
            tap.equal(errors, {}, "the exporter had no error")

            conn.execute("SELECT idem_resolve(scope, key, state => 'failed') FROM idem_unresolved")
            conn.execute("SELECT idem_sweep()")
            published = exporter.metrics()
            tap.equal([published[name] for name in LATER], list(LATER.values()),
                      "what was resolved and swept is gone from the next scrape")
            # what it asks besides, of statistics and WAL, is not for this role to see
            tap.equal([line for line in exporter.said().splitlines()
                       if re.search("error|denied", line, re.IGNORECASE) and "idem" in line], [],
                      "and complains of nothing that is ours")
        finally:
            exporter.stop()
            conn.execute(f"DROP OWNED BY {ROLE}; DROP ROLE {ROLE}")
    tap.finish()


if __name__ == "__main__":
    main()
