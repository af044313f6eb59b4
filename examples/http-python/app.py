#!/usr/bin/python3
"""A shop's HTTP server in Flask: what a handler looks like behind the middleware.

Read order() and pay(); the rest is there to show the edges.  The database is
that of libpq's environment; ../http/schema.sql lays it out.
"""

import json
import os
import secrets
from http.client import HTTPConnection, HTTPException

from flask import Flask, Response, abort, request
from psycopg_pool import ConnectionPool

from answers import NotDone
from idempotency import Idempotency

USERS = {"Bearer token-of-alice": "alice", "Bearer token-of-bob": "bob"}
PROVIDER = int(os.environ.get("PROVIDER_PORT", 8081))
LEASE = os.environ.get("LEASE", "60 s")  # longer than what follows, together
PROVIDER_TIMEOUT = float(os.environ.get("PROVIDER_TIMEOUT", 30))
POOL_TIMEOUT = float(os.environ.get("POOL_TIMEOUT", 3))

app = Flask(__name__)
pool = ConnectionPool("", min_size=1, max_size=10, timeout=POOL_TIMEOUT, open=False,
                      kwargs={"autocommit": True})
idempotent = Idempotency(pool, principal=lambda: USERS.get(request.headers.get("Authorization")),
                         lease=LEASE)


@app.post("/orders")
@idempotent(database_only=True)
def order(db):
    """All effects are rows: if anything goes wrong, there is none of them."""
    want, user = json_of(request), idempotent.principal()
    if not (isinstance(want.get("item"), str) and whole(want.get("qty"), 1000)):
        abort(422, "item: a string, qty: from 1 to 1000")  # stored, and replayed
    number, = db.execute("INSERT INTO orders (customer, item, qty) VALUES (%s, %s, %s)"
                         " RETURNING id", (user, want["item"], want["qty"])).fetchone()
    stock = db.execute("SELECT left_over, rushed FROM stock WHERE item = %s FOR UPDATE",
                       (want["item"],)).fetchone()
    if stock and stock[1]:  # stored by no flow: to come again is what it asks for
        return answer(429, {"error": "too many buyers"}, {"Retry-After": "5"})
    if stock is None or stock[0] is not None and stock[0] < want["qty"]:
        return answer(409, {"error": "out of stock"})
    if stock[0] is None:
        return answer(503, {"error": "being counted"})
    db.execute("UPDATE stock SET left_over = left_over - %s WHERE item = %s",
               (want["qty"], want["item"]))
    return answer(201, {"order": number, "receipt": secrets.token_hex(16)},
                  {"Location": f"/orders/{number}", "Set-Cookie": f"last={number}"})


@app.post("/payments")
@idempotent()
def pay(claim):
    """The provider is called outside of any transaction, under a reference that
    is the same on every attempt.  Where it gives no verdict, nor do we."""
    amount, user = json_of(request).get("amount"), idempotent.principal()
    if not whole(amount, 999999):  # before anything is sent
        abort(422, "amount: from 1 to 999999")
    status, charge = call_provider(claim.reference, amount)
    if status == 402:
        return answer(402, {"error": "card declined"})
    if status == 429:  # it has charged nothing: the claim is released
        return answer(429, {"error": "too many payments"}, {"Retry-After": "5"})
    if status != 201:
        return answer(502, {"error": "no verdict"})

    def record(db):
        db.execute("INSERT INTO payments VALUES (%s, %s, %s, %s)",
                   (claim.reference, user, amount, charge["charge"]))
        return answer(201, {"charge": charge["charge"], "receipt": secrets.token_hex(16)},
                      {"Location": f"/payments/{claim.reference}"})
    return claim.settle(record)


@app.route("/notes", methods=["POST", "PUT"])
@idempotent(database_only=True)
def note(db):
    """Any type of body, and the same bytes back."""
    db.execute("INSERT INTO notes VALUES (%s, %s)", (idempotent.principal(), request.get_data()))
    return Response(request.get_data(), 201, content_type="application/octet-stream")


@app.before_request
def look_first():
    """A body that was read before, and kept, is taken from there."""
    if request.path == "/parsed":
        request.get_json(silent=True)


@app.post("/parsed")
@idempotent(database_only=True)
def parsed(db):
    return answer(200, {"got": request.get_json()})


@app.post("/export")
def export():
    """A stream has no place in a record, so this route is left alone."""
    return Response((f"line {n}\n" for n in range(3)), content_type="text/plain")


@app.post("/mistake")
@idempotent(database_only=True)
def mistake(db):
    """What export() must not be: the middleware refuses, and the note is undone."""
    db.execute("INSERT INTO notes VALUES ('nobody', '')")
    return export()


def json_of(request):
    """The document that was sent; or an HTTPException, as get_json() has its own."""
    try:
        document = request.get_json()
    except RecursionError:
        abort(422, "nested too deeply")
    return document if isinstance(document, dict) else abort(422, "an object is wanted")


def whole(number, most):
    return type(number) in (int, float) and number % 1 == 0 and 1 <= number <= most


def answer(status, document, headers=None):
    return Response(json.dumps(document, separators=(",", ":")), status, headers,
                    content_type="application/json")


def call_provider(reference, amount):
    """Its status and document.  No connection at all: for certain nothing was sent."""
    wire = HTTPConnection("127.0.0.1", PROVIDER, timeout=PROVIDER_TIMEOUT)
    try:
        wire.connect()
    except ConnectionRefusedError:
        raise NotDone from None
    try:
        wire.request("POST", "/charges", json.dumps({"reference": reference, "amount": amount}))
        response = wire.getresponse()
        return response.status, json.loads(response.read())
    except (OSError, HTTPException, ValueError):  # no answer, or none that we understand
        return 504, None
    finally:
        wire.close()


if __name__ == "__main__":
    pool.open()
    app.run("127.0.0.1", int(os.environ["PORT"]), threaded=True)
