"""The scenario and the race by psycopg 3 (../lib/scenario.py, ../lib/race.py)."""

import json
import os
import re
import sys
from datetime import datetime, timedelta, timezone
from urllib.parse import quote, unquote
from uuid import UUID

import psycopg
from psycopg.types.json import Jsonb

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
MICROSECOND = timedelta(microseconds=1)



class Untyped(str):
    """Sent without a type also where parameters are binary: there str is text."""


NATIVE = {
    "text": str,
    "untyped": Untyped,
    "integer": int,
    "boolean": lambda text: text == "t",
    "bytea": bytes.fromhex,
    "uuid": UUID,
    "jsonb": lambda text: Jsonb(json.loads(text)),
    "interval": lambda text: timedelta(microseconds=int(text)),
    "text[]": lambda text: [unquote(item) for item in text.split("|") if item],
}
SHOWN = {
    "boolean": lambda value: "t" if value else "f",
    "bytea": bytes.hex,
    "jsonb": json.dumps,
    "interval": lambda value: str(value // MICROSECOND),
    "timestamptz": lambda value: str((value - EPOCH) // MICROSECOND),
}


class Client:
    def __init__(self, way):
        cursors = {"client": psycopg.ClientCursor}
        self.db = psycopg.connect("", autocommit=True,
                                  cursor_factory=cursors.get(way, psycopg.Cursor))
        self.placeholder = "%b" if way == "binary" else "%s"
        self.options = {"binary": way == "binary"}
        self.prepare = way == "prepared"
        if way == "text":
            self.db.prepare_threshold = None    # what a pooler in transaction mode wants

    def query(self, sql, parameters=()):
        placeholders = ("%t" if isinstance(p, Untyped) else self.placeholder for p in parameters)
        sql = re.sub(r"\$\d+\b", lambda _: next(placeholders), sql.replace("%", "%%"))
        cursor = self.db.cursor(**self.options)
        return cursor.execute(sql, parameters, prepare=self.prepare or None).fetchall()

    def do(self, what):
        if what == "begin":
            self.db.autocommit = False
        elif what in ("commit", "rollback"):
            try:
                getattr(self.db, what)()
            finally:
                self.db.autocommit = True
        else:
            self.db.execute(what + " s")


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
        except psycopg.Error as error:
            print(number, "error", error.sqlstate or quote(str(error)),
                  error.diag.column_name or "", sep="\t")


def transactional(client, key, me):
    with client.db.transaction():
        outcome, body = client.query(
            "SELECT outcome, response_body FROM idem_claim('race', $1, request => $2,"
            " wait => '20 ms')", [key, Jsonb({"key": key})])[0]
        if outcome == "claimed":
            body = f"{key} by {me}, {os.getpid()} \N{TEAPOT}"
            client.query("INSERT INTO effect VALUES ('transactional', $1, $2, $3) RETURNING 1",
                         [key, me, os.getpid()])
            client.query("SELECT idem_finish('race', $1, response_body => $2)", [key, body])
    return outcome, body


def leased(client, key, me):
    outcome, token, body = client.query(
        "SELECT outcome, token, response_body FROM idem_claim('leased race', $1, request => $2,"
        " lease => $3)", [key, Jsonb({"key": key}), timedelta(minutes=10)])[0]
    if outcome == "claimed":
        client.query("INSERT INTO effect VALUES ('outside', $1, $2, $3) RETURNING 1",
                     [key, me, os.getpid()])
        body = f"{key} by {me}, {os.getpid()} \N{TEAPOT}"
        with client.db.transaction():
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
    way, *me = sys.argv[1:]
    client = Client(way)
    if me:
        race(client, *me)
    else:
        conformance(client)


if __name__ == "__main__":
    main()
