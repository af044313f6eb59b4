"""What to know about psycopg2, shown; titles as in docs/languages.md."""

import contextlib
import uuid

import psycopg2
from psycopg2.extras import register_uuid

db = psycopg2.connect("")
db.autocommit = True


def trap(title, holds, detail=""):
    print(("ok - " if holds else "not ok - ") + title + ("" if holds else f": {detail!r}"))


def row(connection, sql, parameters=None):
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        return cursor.fetchone()


def error_of(connection, sql, parameters=None):
    try:
        row(connection, sql, parameters)
    except (psycopg2.Error, TypeError, ValueError, IndexError) as error:
        return getattr(error, "pgcode", None) or type(error).__name__
    return None


(token,) = row(db, "SELECT token FROM idem_claim('trap', 'token', lease => '60 s')")
state = error_of(db, "SELECT idem_finish('trap', 'token', token => %s)", (uuid.UUID(token),))
trap("A uuid.UUID wants register_uuid()", isinstance(token, str) and state == "ProgrammingError",
     state)
register_uuid()
state = error_of(db, "SELECT idem_finish('trap', 'token', token => %s)", (uuid.UUID(token),))
trap("... after which the token is one", state is None, state)

state = error_of(db, "SELECT * FROM idem_claim('trap', 'dict', request => %s)", ({"a": 1},))
trap("A dict wants Json around it", state == "ProgrammingError", state)

state = error_of(db, "SELECT 17 % 5, %s", (1,))
trap("A % in the SQL is written %%", state is not None, state)

with contextlib.closing(psycopg2.connect("")) as silent:
    row(silent, "SELECT * FROM idem_claim('trap', 'open', lease => '60 s')")
    (seen,) = row(db, "SELECT state FROM idem_lookup('trap', 'open')")
    trap("Without autocommit every statement opens a transaction", seen is None, seen)
    silent.rollback()

    row(silent, "SELECT * FROM idem_once('trap', 'swallowed')")
    error_of(silent, "SELECT 1 / 0")
    silent.commit()
    (first,) = row(silent, "SELECT idem_once('trap', 'swallowed')")
    trap("COMMIT says nothing after a swallowed error", first is True, first)
    silent.rollback()

    with silent:
        row(silent, "SELECT * FROM idem_once('trap', 'with')")
    trap("The with block ends the transaction, not the connection", not silent.closed)

row(db, "SELECT * FROM idem_claim('trap', 'bytes', lease => '60 s')")
(got,) = row(db, "SELECT fingerprint FROM (SELECT idem_fingerprint('{}') AS fingerprint) f")
trap("bytea arrives as a memoryview", isinstance(got, memoryview) and len(bytes(got)) == 32, got)
