"""What to know about psycopg 3, shown; titles as in docs/languages.md."""

import contextlib
import json
import uuid

import psycopg
from psycopg.types.json import Jsonb

db = psycopg.connect("", autocommit=True)


def trap(title, holds, detail=""):
    print(("ok - " if holds else "not ok - ") + title + ("" if holds else f": {detail!r}"))


def error_of(connection, sql, parameters=()):
    try:
        connection.execute(sql, parameters)
    except psycopg.Error as error:
        return error.sqlstate or type(error).__name__
    return None


state = error_of(db, "SELECT * FROM idem_claim('trap', 'binary', request => %b)", ("{}",))
trap("In a binary parameter a str is text", state == "42883", state)

state = error_of(db, "SELECT * FROM idem_claim('trap', 'dict', request => %s)", ({"a": 1},))
trap("A dict wants Jsonb around it", state == "ProgrammingError", state)

state = error_of(db, "SELECT 17 % 5, %s", (1,))
trap("A % in the SQL is written %%", state == "ProgrammingError", state)

with psycopg.connect("") as silent:
    silent.execute("SELECT * FROM idem_claim('trap', 'open', lease => '60 s')").fetchone()
    (seen,) = db.execute("SELECT state FROM idem_lookup('trap', 'open')").fetchone()
    trap("Without autocommit every statement opens a transaction", seen is None, seen)
    silent.rollback()

    silent.execute("SELECT * FROM idem_once('trap', 'swallowed')")
    with contextlib.suppress(psycopg.Error):
        silent.execute("SELECT 1 / 0")
    silent.commit()
    (first,) = silent.execute("SELECT idem_once('trap', 'swallowed')").fetchone()
    trap("COMMIT says nothing after a swallowed error", first is True, first)
    silent.rollback()

prepared = []
for _ in range(6):
    db.execute("SELECT outcome FROM idem_lookup('trap', %s)", ("six",))
    prepared += db.execute("SELECT count(*) FROM pg_prepared_statements"
                           " WHERE statement LIKE 'SELECT outcome %'").fetchone()
trap("What is run often becomes a prepared statement", prepared == [0, 0, 0, 0, 0, 1], prepared)

headers = {"amount": 0.1 + 0.2, "id": 9007199254740993}
with db.transaction():
    db.execute("SELECT * FROM idem_claim('trap', 'numbers')")
    db.execute("SELECT idem_finish('trap', 'numbers', response_headers => %s)", (Jsonb(headers),))
got, text = db.execute("SELECT response_headers, response_headers::text"
                       " FROM idem_lookup('trap', 'numbers')").fetchone()
trap("Integers in jsonb stay exact, fractions become float",
     got == headers and json.loads(text) == headers and isinstance(got["amount"], float), got)

(token,) = db.execute("SELECT token FROM idem_claim('trap', 'token', lease => '60 s')").fetchone()
trap("The token is a uuid.UUID", isinstance(token, uuid.UUID), token)
