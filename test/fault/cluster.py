"""Sessions on a server with fault points, and what may be left after a fault."""

import contextlib
import os
import threading
import time
from pathlib import Path

import psycopg

from calls import TOKEN

STALL = "pg_advisory_%s(7321, 0)"       # what a stalled session waits for (src/fault.c)
PATIENCE = 60           # seconds until something that does not come is a failure
MOMENT = 10             # seconds after which what others hold is held for good
INDEXES = ("idem_record_pkey", "idem_record_sweep_idx", "idem_record_lease_idx")

# Lines of the server's log that no fault may cause.
SUSPICIOUS = ("WARNING:", "PANIC:", "TRAP:", "runtime error")
EXPECTED = ("because of crash of another server process",)

# The record of a key, and what the key's calls did besides.
STATE = """
    SELECT jsonb_agg(to_jsonb(r) ORDER BY key)::text FROM idem_record r
    WHERE starts_with(key, %(k)s) AND key <> %(k)s || ' outer'"""
EFFECTS = "SELECT count(*) FROM effect WHERE starts_with(key, %(k)s)"

SETUP = """
CREATE EXTENSION IF NOT EXISTS idempotency;
CREATE EXTENSION amcheck;
CREATE EXTENSION pg_buffercache;
CREATE TABLE effect (key text);

-- What any client can do, or an operator if the key is somebody's.
CREATE FUNCTION run_to_replay(k text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    o text := (SELECT outcome FROM idem_claim('fault', k));
BEGIN
    IF o IN ('in_progress', 'unknown') THEN
        o := (SELECT outcome FROM idem_takeover('fault', k, force => true));
    END IF;
    IF o = 'claimed' THEN
        PERFORM idem_finish('fault', k, response_body => 'replay');
    END IF;
    RETURN (SELECT outcome FROM idem_lookup('fault', k));
END $$"""


class Stuck(Exception):
    """Something did not come."""


def arguments_of(key, wait="1 hour"):
    return {"k": key, "t": TOKEN, "wait": wait, "gid": os.environ["PGDATABASE"]}


def connect(**options):
    """A session that takes several statements at once."""
    return psycopg.connect("", autocommit=True, cursor_factory=psycopg.ClientCursor, **options)


def value(db, sql, arguments=None):
    """The first column of the last statement's first row as text; '' if there is none."""
    cursor = db.execute(sql, arguments)
    while cursor.nextset():
        pass
    row = cursor.fetchone() if cursor.description else None
    return str(row[0]) if row else ""


def state_of(error):
    """The SQLSTATE of an error.  A session's last words are told without one."""
    if error.sqlstate is None and "administrator command" in str(error):
        return "57P01"
    return error.sqlstate or "connection lost"


def await_true(db, sql, *arguments):
    patience = time.monotonic() + PATIENCE
    while not db.execute(sql, arguments).fetchone()[0]:
        if time.monotonic() > patience:
            raise Stuck(sql)
        time.sleep(0.001)


def await_up():
    """A session on a server that restarts by itself."""
    patience = time.monotonic() + PATIENCE
    while True:
        try:
            return connect()
        except psycopg.OperationalError:
            if time.monotonic() > patience:
                raise
            time.sleep(0.01)


def await_lost(db):
    """Wait for the crash of another session to end this one too."""
    patience = time.monotonic() + PATIENCE
    with contextlib.suppress(psycopg.OperationalError):
        while time.monotonic() < patience:
            db.execute("SELECT pg_sleep(0.01)")
        raise Stuck("the server has not crashed")


class Stalled:
    """Statements that stand at a point while this is entered.

    They go on after, or are cancelled if they would go on for ever.
    """

    def __init__(self, sql, arguments, point, endless=False):
        self.sql, self.arguments, self.point, self.endless = sql, arguments, point, endless

    def __enter__(self):
        self.control = connect()
        self.db = connect()
        self.pid = self.db.info.backend_pid
        self.control.execute(f"SELECT {STALL % 'lock'}")
        self.db.execute(f"SET idempotency.fault = '{self.point}:stall'")
        self.thread = threading.Thread(target=self.run)
        self.thread.start()
        await_true(self.control, "SELECT EXISTS (SELECT FROM pg_locks "
                   "WHERE locktype = 'advisory' AND NOT granted AND pid = %s)", self.pid)
        return self

    def run(self):
        with contextlib.suppress(psycopg.Error):
            self.db.execute(self.sql, self.arguments)

    def __exit__(self, *unused):
        self.control.close()
        if self.endless:
            with connect() as db:
                db.execute("SELECT pg_cancel_backend(%s)", (self.pid,))
        self.thread.join(PATIENCE)
        self.db.close()


def left_behind(db, pid):
    """What an idle session still has that it should not.  A list of texts."""
    row = db.execute("""
        SELECT a.state, a.backend_xmin, a.backend_xid,
            (SELECT string_agg(locktype || ' ' || mode, ', ') FROM pg_locks l
             WHERE l.pid = a.pid AND mode <> 'SIReadLock')
        FROM pg_stat_activity a WHERE pid = %s""", (pid,)).fetchone()
    return [f"{name}: {left}" for name, left
            in zip(("state", "xmin", "xid", "locks"), row)
            if left is not None and left != "idle"]


def corruption(db):
    """What amcheck says of the table and its indexes.  A list of texts."""
    found = [row[0] for row in db.execute("SELECT msg FROM verify_heapam('idem_record')")]
    for index in INDEXES:
        try:
            db.execute("SELECT bt_index_check(%s::regclass, true)", (index,))
        except psycopg.Error as error:
            found.append(str(error))
    return found


def retained(db):
    """Deleted rows that a vacuum cannot remove, because something holds them for long.

    For a moment a session that logs in to any database does, until it is known to which.
    """
    db.execute("DELETE FROM idem_record")
    patience = time.monotonic() + MOMENT
    while True:
        db.execute("VACUUM idem_record")
        size = value(db, "SELECT pg_relation_size('idem_record')")
        if size == "0":
            return []
        if time.monotonic() > patience:
            return [f"{size} bytes are left of an empty table"]


class Log:
    """What is new in the server's log, of what should not be there."""

    def __init__(self):
        self.path = Path(os.environ["PGHOST"]) / "server.log"
        self.seen = self.path.stat().st_size

    def suspicious(self):
        with self.path.open(encoding="utf-8", errors="replace") as log:
            log.seek(self.seen)
            return [line.rstrip() for line in log
                    if any(word in line for word in SUSPICIOUS)
                    and not any(word in line for word in EXPECTED)]
