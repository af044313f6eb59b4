#!/usr/bin/python3
"""Queries of sqlsmith, which makes them of whatever the catalog offers.

It calls PostgreSQL's functions and ours with any expressions for arguments,
as a role that may use all of ours and is no superuser.  What counts is that
none of its queries ends a backend or meets an internal error in the extension.
It makes nothing of functions that return a row, so these are offered as
functions of one value as well.  Most of its queries are refused by the parser
and only some reach the extension: calls.py is the one that looks closely.

FUZZ_SCALE multiplies the number of queries; TEST_LONG lets it run for an hour.
"""

import os
import subprocess
import sys

import psycopg

sys.path.insert(1, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "stress"))
from lib import tap  # noqa: E402
from randomsql import server  # noqa: E402

QUERIES = 500
LONG = 3600             # seconds
PATIENCE = 600          # seconds until the smoke run is stopped, however far it is

# sqlsmith picks a function by the type of its result.  Ours give one that
# nothing else gives, and that the columns of a table ask for.
OFFERED = """
CREATE DOMAIN answer AS text;
CREATE FUNCTION smith_claim(scope text, key text, request jsonb, lease interval) RETURNS answer
    LANGUAGE sql AS 'SELECT token::text FROM idem_claim($1, $2, request => $3, lease => $4)';
CREATE FUNCTION smith_finish(scope text, key text, token uuid, state text, body text) RETURNS answer
    LANGUAGE sql AS 'SELECT idem_finish($1, $2, token => $3, state => $4, response_body => $5)::text';
CREATE FUNCTION smith_execute(key text, request jsonb, command text) RETURNS answer
    LANGUAGE sql AS 'SELECT response_body FROM idem_execute($1, $1, request => $2, command => $3)';
CREATE FUNCTION smith_lookup(scope text, key text, principal text) RETURNS answer
    LANGUAGE sql AS 'SELECT outcome FROM idem_lookup($1, $2, $3)';
CREATE FUNCTION smith_checkpoint(scope text, key text, token uuid, data jsonb) RETURNS answer
    LANGUAGE sql AS 'SELECT idem_checkpoint($1, $2, token => $3, checkpoint => $2, checkpoint_data => $4)::text';
CREATE FUNCTION smith_extend(scope text, key text, token uuid, lease interval) RETURNS answer
    LANGUAGE sql AS 'SELECT idem_extend($1, $2, token => $3, lease => $4)::text';
CREATE FUNCTION smith_assert(scope text, key text, token uuid) RETURNS answer
    LANGUAGE sql AS 'SELECT idem_assert($1, $2, token => $3)::text';
CREATE FUNCTION smith_once(scope text, key text, ttl interval) RETURNS answer
    LANGUAGE sql AS 'SELECT idem_once($1, $2, ttl => $3)::text';
CREATE FUNCTION smith_batch(scope text, a text, b text, c text) RETURNS answer
    LANGUAGE sql AS 'SELECT count(*)::text FROM idem_once_batch($1, ARRAY[$2, $3, $4])';
CREATE FUNCTION smith_takeover(scope text, key text, lease interval, force bool) RETURNS answer
    LANGUAGE sql AS 'SELECT token::text FROM idem_takeover($1, $2, lease => $3, force => $4)';
CREATE FUNCTION smith_resolve(scope text, key text, state text, body text) RETURNS answer
    LANGUAGE sql AS 'SELECT outcome FROM idem_resolve($1, $2, state => $3, response_body => $4)';
CREATE FUNCTION smith_forget(scope text, key text) RETURNS answer
    LANGUAGE sql AS 'SELECT idem_forget($1, $2)::text';
CREATE FUNCTION smith_sweep(max_rows int) RETURNS answer
    LANGUAGE sql AS 'SELECT deleted::text FROM idem_sweep($1)';
CREATE TABLE smith (scope text, key text, doc jsonb, lease interval, token uuid, n int,
    a answer, b answer, c answer, d answer);
INSERT INTO smith SELECT 'smith', 'k' || i, to_jsonb(i), i * interval '1 ms', gen_random_uuid(), i
    FROM generate_series(1, 20) i;
SELECT (idem_claim(scope, key, request => doc, lease => lease)).outcome FROM smith;
DROP ROLE IF EXISTS smith;
CREATE ROLE smith LOGIN;
ALTER ROLE smith SET statement_timeout = '2s';
ALTER ROLE smith SET lock_timeout = '1s';
GRANT ALL ON smith TO smith;
DO $$ BEGIN
    EXECUTE format('ALTER DATABASE %I SET log_error_verbosity = verbose', current_database());
    EXECUTE format('ALTER DATABASE %I SET log_min_error_statement = panic', current_database());
END $$;
SELECT idem_grant('smith', 'operator');
"""
GONE = "DROP OWNED BY smith; DROP ROLE smith"


def run_sqlsmith():
    """Its output.  It ends by itself after so many queries, or when it loses the server."""
    long = os.environ.get("TEST_LONG")
    queries = 1 << 40 if long else tap.scaled(QUERIES, 10)
    target = " ".join(f"{key}={os.environ[name]}" for key, name in (
        ("host", "PGHOST"), ("port", "PGPORT"), ("dbname", "PGDATABASE")) if name in os.environ)
    command = ["sqlsmith", f"--target={target} user=smith", f"--seed={tap.SEED}",
               f"--max-queries={queries}", "--exclude-catalog", "--verbose"]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, errors="replace",
                             check=False, timeout=tap.scaled(LONG) if long else PATIENCE)
        return ran.stdout + ran.stderr, ran.returncode
    except subprocess.TimeoutExpired as stopped:
        output = (stopped.stdout or b"") + (stopped.stderr or b"")
        return output.decode(errors="replace"), 0


def main():
    tap.begin()
    with psycopg.connect("", autocommit=True) as db:
        db.execute(OFFERED)
        before, position = server.sound(db), server.log_position()
        output, status = run_sqlsmith()
        tap.ok(status == 0, "sqlsmith ended of itself", output.splitlines()[-12:])
        if position is not None:
            tap.note(f"{server.errors_raised(position)} errors were raised by the extension")
        tap.equal(server.sound(db), before, "the server has not been down, nor a session of it")
        if position is not None:
            tap.none(server.alarms(position), "the server's log shows no crash and no leak")
            tap.none(server.internal_errors(position), "and no internal error of the extension")
        tap.none(server.violations(db), "every record satisfies the constraints")
        for name in server.INVARIANTS:
            tap.none(server.broken(db, name), name)
        db.execute(GONE)
    tap.finish()


if __name__ == "__main__":
    main()
