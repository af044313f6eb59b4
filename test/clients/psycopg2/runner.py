"""The scenario and the race by psycopg2 (../lib/scenario.py, ../lib/race.py)."""

import json
import os
import re
import sys
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from urllib.parse import quote, unquote
from uuid import UUID

import psycopg2
from psycopg2.extras import Json, register_uuid

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
MICROSECOND = timedelta(microseconds=1)

NATIVE = {
    "text": str,
    "untyped": str,
    "integer": int,
    "boolean": lambda text: text == "t",
    "bytea": bytes.fromhex,
    "uuid": UUID,
    "jsonb": lambda text: Json(json.loads(text)),
    "interval": lambda text: timedelta(microseconds=int(text)),
    "text[]": lambda text: [unquote(item) for item in text.split("|") if item],
}
SHOWN = {
    "boolean": lambda value: "t" if value else "f",
    "bytea": memoryview.hex,
    "jsonb": json.dumps,
    "interval": lambda value: str(value // MICROSECOND),
    "timestamptz": lambda value: str((value - EPOCH) // MICROSECOND),
}


class Client:
    """Parameters are put into the SQL as literals, by the driver; there is no other way."""

    def __init__(self):
        self.db = psycopg2.connect("")
        self.db.autocommit = True
        register_uuid()

    def query(self, sql, parameters=()):
        with self.db.cursor() as cursor:
            cursor.execute(re.sub(r"\$\d+\b", "%s", sql.replace("%", "%%")), parameters)
            return cursor.fetchall()

    def do(self, what):
        if what == "begin":
            self.db.autocommit = False
        elif what in ("commit", "rollback"):
            try:
                getattr(self.db, what)()
            finally:
                self.db.autocommit = True
        else:
            with self.db.cursor() as cursor:
                cursor.execute(what + " s")


def show(value, kind):
    if value is None:
        return "null"
    if kind == "text[]":
        text = "|".join(quote(item, safe="") for item in value)
    else:
        text = quote(SHOWN.get(kind, str)(value), safe="")
    return f"{type(value).__name__}={text}"


def step(client, kept, what, sql, parameters, columns):
    if what != "query":
        client.do(what)
        return []
    values = []
    for parameter in parameters.split():
        kind, _, text = parameter.partition("=")
        values.append(None if kind == "null" else kept[text[1:]] if text.startswith("@")
                      else NATIVE[kind](text if kind == "text[]" else unquote(text)))
    columns = [column.partition(">") for column in columns.split()]
    rows = client.query(unquote(sql), values)
    for row in rows:
        kept.update((name, value) for value, (_, _, name) in zip(row, columns) if name)
    return [" ".join(show(value, kind) for value, (kind, _, _) in zip(row, columns))
            for row in rows]


def conformance(client):
    kept = {}
    for line in sys.stdin:
        number, *fields = line.rstrip("\n").split("\t")
        try:
            print(number, "ok", *step(client, kept, *fields), sep="\t")
        except psycopg2.Error as error:
            print(number, "error", error.pgcode or quote(str(error)),
                  error.diag.column_name or "", sep="\t")


@contextmanager
def transaction(client):
    client.do("begin")
    try:
        yield
    except BaseException:
        client.do("rollback")
        raise
    client.do("commit")


def transactional(client, key, me):
    with transaction(client):
        outcome, body = client.query(
            "SELECT outcome, response_body FROM idem_claim('race', $1, request => $2,"
            " wait => '20 ms')", [key, Json({"key": key})])[0]
        if outcome == "claimed":
            body = f"{key} by {me}, {os.getpid()} \N{TEAPOT}"
            client.query("INSERT INTO effect VALUES ('transactional', $1, $2, $3) RETURNING 1",
                         [key, me, os.getpid()])
            client.query("SELECT idem_finish('race', $1, response_body => $2)", [key, body])
    return outcome, body


def leased(client, key, me):
    outcome, token, body = client.query(
        "SELECT outcome, token, response_body FROM idem_claim('leased race', $1, request => $2,"
        " lease => $3)", [key, Json({"key": key}), timedelta(minutes=10)])[0]
    if outcome == "claimed":
        client.query("INSERT INTO effect VALUES ('outside', $1, $2, $3) RETURNING 1",
                     [key, me, os.getpid()])
        body = f"{key} by {me}, {os.getpid()} \N{TEAPOT}"
        with transaction(client):
            client.query("INSERT INTO effect VALUES ('leased', $1, $2, $3) RETURNING 1",
                         [key, me, os.getpid()])
            client.query("SELECT idem_finish('leased race', $1, token => $2, response_body => $3)",
                         [key, token, body])
    return outcome, body


def race(client, me):
    flows = {"transactional": transactional, "leased": leased}
    turns = [line.rstrip("\n").split("\t") for line in sys.stdin]
    for flow, key in turns:
        outcome, body = flows[flow](client, key, me)
        print(flow, key, outcome, quote(body or "", safe=""), sep="\t")
        if outcome == "in_progress":
            turns.append([flow, key])


def main():
    _, *me = sys.argv[1:]
    client = Client()
    if me:
        race(client, *me)
    else:
        conformance(client)


if __name__ == "__main__":
    main()
