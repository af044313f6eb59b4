#!/usr/bin/python3
"""A shop's HTTP server in Flask: what a handler looks like behind the middleware.

Read order() and pay(); the rest is there to show the edges.  The database is
that of libpq's environment; ../http/schema.sql lays it out.
"""

import json
import os
import secrets
from http.client import HTTPConnection, HTTPException

from flask import Flask, Response, request
from psycopg_pool import ConnectionPool

from answers import NotDone
from idempotency import Idempotency

USERS = {"Bearer token-of-alice": "alice", "Bearer token-of-bob": "bob"}
PROVIDER = int(os.environ.get("PROVIDER_PORT", 0))
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
    want, user = request.get_json(), idempotent.principal()
    number, = db.execute("INSERT INTO orders (customer, item, qty) VALUES (%s, %s, %s)"
                         " RETURNING id", (user, want["item"], want["qty"])).fetchone()
    stock = db.execute("SELECT left_over FROM stock WHERE item = %s FOR UPDATE",
                       (want["item"],)).fetchone()
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
    amount, user = request.get_json()["amount"], idempotent.principal()
    status, charge = call_provider(claim.reference, amount)
    if status == 402:
        return answer(402, {"error": "card declined"})
    if status >= 500:
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
    except (OSError, HTTPException):
        return 504, None
    finally:
        wire.close()


if __name__ == "__main__":
    pool.open()
    app.run("127.0.0.1", int(os.environ["PORT"]), threaded=True)
