#!/usr/bin/python3
"""A payment provider, as difficult as real ones can be.

    POST /charges                 charge an order; once per order number
    GET  /orders/<no>             what became of an order
    POST /orders/<no>/expire      close an order that has not been charged
    GET  /charges                 the book: every charge made

Its state is a database of its own, so it survives being killed.  Charging is
idempotent by the merchant's order number.  Signed callbacks tell of what
happened to an order, and are sent again until the merchant answers 2xx.

What it does wrong is drawn from the seed, the order and the number of the
call: answers lost after charging, requests lost before, answers that come too
late, charges that are *made* too late, errors that mean nothing, callbacks
that are repeated, delayed and out of order.
"""

import argparse
import hashlib
import hmac
import json
import os
import random
import socket
import sqlite3
import threading
import time
from collections import Counter
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SCHEMA = """
    CREATE TABLE IF NOT EXISTS orders (
        order_no TEXT PRIMARY KEY, terms TEXT, status TEXT NOT NULL, charge_id TEXT, reason TEXT);
    -- Money that moved.  Deliberately without a key: a double charge must be able to show.
    CREATE TABLE IF NOT EXISTS charges (
        order_no TEXT, charge_id TEXT, amount INTEGER, currency TEXT);
    -- Each time that somebody asked for a charge, whatever became of it.
    CREATE TABLE IF NOT EXISTS requests (order_no TEXT);
    CREATE TABLE IF NOT EXISTS events (
        event_id TEXT PRIMARY KEY, body TEXT, due REAL, sends_left INTEGER, sent INTEGER DEFAULT 0);
    -- What went wrong so far, for whoever tells the story afterwards.
    CREATE TABLE IF NOT EXISTS faults (fault TEXT PRIMARY KEY, times INTEGER);
"""

# How likely each fault of a charge is; the rest is answered as it should be.
CHARGE_FAULTS = {"request lost": 0.04, "answer lost": 0.06, "answer late": 0.05,
                 "charge late": 0.04, "error before": 0.02, "error after": 0.03}
QUERY_FAULTS = {"query failed": 0.10, "query late": 0.03}


class Book:
    """Orders, charges and events: one connection, one transaction at a time."""

    def __init__(self, path, seed):
        self.seed = seed
        self.lock = threading.Lock()
        self.db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self.db.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;" + SCHEMA)

    @contextmanager
    def transaction(self):
        with self.lock:
            self.db.execute("BEGIN IMMEDIATE")
            try:
                yield self.db
                self.db.execute("COMMIT")
            except BaseException:
                self.db.execute("ROLLBACK")
                raise

    def asked(self, order_no):
        with self.transaction() as db:
            db.execute("INSERT INTO requests VALUES (?)", (order_no,))

    def charge(self, order_no, terms):
        """(HTTP status, answer): made now, or as it was made before."""
        wanted = json.dumps(terms, sort_keys=True)
        with self.transaction() as db:
            order = self.order(order_no)
            if order is None:
                order = self.decide(db, order_no, terms, wanted)
            elif order["status"] == "expired":
                count(db, "late charge refused")
            elif order["terms"] != wanted:
                return 422, {"status": "declined", "reason": "order number used for other terms"}
        return {"charged": 201, "declined": 402, "expired": 409}[order["status"]], answer(order)

    def decide(self, db, order_no, terms, wanted):
        luck = random.Random(f"{self.seed}/{order_no}/events")
        if terms["card"] == "declined":
            charge_id, status, reason, kinds = None, "declined", "insufficient funds", ["declined"]
        else:
            charge_id = "ch_" + os.urandom(8).hex()
            status, reason, kinds = "charged", None, ["captured", "settled"]
            db.execute("INSERT INTO charges VALUES (?, ?, ?, ?)",
                       (order_no, charge_id, terms["amount"], terms["currency"]))
        db.execute("INSERT INTO orders VALUES (?, ?, ?, ?, ?)",
                   (order_no, wanted, status, charge_id, reason))
        for seq, kind in enumerate(kinds, 1):
            event = {"event_id": f"ev_{order_no}_{seq}", "order_no": order_no,
                     "seq": seq, "kind": kind}
            sends = luck.choices([1, 2, 3], [70, 20, 10])[0]
            db.execute("INSERT INTO events (event_id, body, due, sends_left) VALUES (?, ?, ?, ?)",
                       (event["event_id"], json.dumps(event), time.time() + luck.random(), sends))
        return self.order(order_no)

    def expire(self, order_no):
        """Close the order; if it was charged or declined before, that stands."""
        with self.transaction() as db:
            if self.order(order_no) is None:
                db.execute("INSERT INTO orders VALUES (?, NULL, 'expired', NULL, ?)",
                           (order_no, "the order was closed before it was charged"))
            return 200, answer(self.order(order_no))

    def query(self, order_no):
        with self.transaction():
            order = self.order(order_no)
        return (200, answer(order)) if order else (404, {"status": "absent"})

    def charges(self):
        with self.transaction() as db:
            return 200, db.execute("SELECT * FROM charges").fetchall()

    def order(self, order_no):
        row = self.db.execute("SELECT terms, status, charge_id, reason FROM orders"
                              " WHERE order_no = ?", (order_no,)).fetchone()
        return row and dict(zip(("terms", "status", "charge_id", "reason"), row))

    def next_event(self):
        """An event that is due, kept from the other senders for a while; or None."""
        with self.transaction() as db:
            row = db.execute("SELECT event_id, body FROM events WHERE sends_left > 0 AND due < ?"
                             " ORDER BY due LIMIT 1", (time.time(),)).fetchone()
            if row:
                db.execute("UPDATE events SET due = ? WHERE event_id = ?",
                           (time.time() + 5, row[0]))
            return row

    def event_sent(self, event_id, accepted):
        """Without a 2xx it is sent again, less and less often; with one, only
        if it is one to repeat."""
        with self.transaction() as db:
            db.execute("UPDATE events SET sent = sent + 1, sends_left = sends_left - ?,"
                       " due = ? + min(0.2 * (sent + 1), 2) WHERE event_id = ?",
                       (accepted, time.time(), event_id))


def answer(order):
    return {name: order[name] for name in ("status", "charge_id", "reason")}


def count(db, fault):
    db.execute("INSERT INTO faults VALUES (?, 1)"
               " ON CONFLICT (fault) DO UPDATE SET times = times + 1", (fault,))


def sign(secret, timestamp, body):
    return hmac.new(secret, f"{timestamp}.".encode() + body, hashlib.sha256).hexdigest()


def send_events(book, port, secret):
    """Deliver events for ever.  Each delivery is signed with its own time."""
    while True:
        event = book.next_event()
        if event is None:
            time.sleep(0.05)
            continue
        event_id, body = event[0], event[1].encode()
        timestamp = int(time.time())
        headers = {"Provider-Timestamp": str(timestamp),
                   "Provider-Signature": sign(secret, timestamp, body)}
        wire = HTTPConnection("127.0.0.1", port, timeout=3)
        try:
            wire.request("POST", "/callbacks", body, headers)
            accepted = 200 <= wire.getresponse().status < 300
        except (OSError, HTTPException):
            accepted = False
        finally:
            wire.close()
        book.event_sent(event_id, accepted)


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        book = self.server.book
        try:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        except (OSError, ValueError):
            return  # the merchant died in mid-sentence
        if self.path == "/charges":
            order_no = body.pop("order_no")
            book.asked(order_no)
            self.with_faults(CHARGE_FAULTS, order_no, lambda: book.charge(order_no, body))
        else:
            order_no = self.path.split("/")[2]
            self.with_faults(QUERY_FAULTS, order_no, lambda: book.expire(order_no))

    def do_GET(self):
        if self.path == "/charges":
            return self.send(*self.server.book.charges())
        order_no = self.path.split("/")[2]
        self.with_faults(QUERY_FAULTS, order_no, lambda: self.server.book.query(order_no))

    def with_faults(self, faults, order_no, act):
        """Do it, or fail to, or fail to say so."""
        fault = self.server.draw(faults, order_no)
        if fault:
            with self.server.book.transaction() as db:
                count(db, fault)
        match fault:
            case "request lost":
                return self.hang_up()
            case "answer lost":
                act()
                return self.hang_up()
            case "charge late" | "query late":
                time.sleep(self.server.late)
                return self.send(*act())
            case "answer late":
                result = act()
                time.sleep(self.server.late)
                return self.send(*result)
            case "error before" | "query failed":
                return self.send(500, {"error": "internal error"})
            case "error after":
                act()
                return self.send(502, {"error": "bad gateway"})
            case None:
                time.sleep(self.server.usual)
                return self.send(*act())

    def hang_up(self):
        self.connection.shutdown(socket.SHUT_RDWR)

    def send(self, status, answer):
        body = json.dumps(answer).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except OSError:
            pass  # the merchant has given up, or is dead

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    usual = 0.05  # seconds that a card network takes

    def __init__(self, port, book, seed, late):
        super().__init__(("127.0.0.1", port), Handler)
        self.book, self.seed, self.late = book, seed, late
        self.calls = Counter()

    def draw(self, faults, order_no):
        """The fault of this call, or None: by seed, order and number of the call."""
        self.calls[order_no] += 1
        luck = random.Random(f"{self.seed}/{order_no}/{self.calls[order_no]}").random()
        for fault, likely in faults.items():
            luck -= likely
            if luck < 0:
                return fault
        return None


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--port", type=int, required=True)
    options.add_argument("--callback-port", type=int, required=True)
    options.add_argument("--state", required=True, help="file that holds the provider's book")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--late", type=float, default=10, help="seconds that a late answer takes")
    arg = options.parse_args()

    book = Book(arg.state, arg.seed)
    server = Server(arg.port, book, arg.seed, arg.late)
    for _ in range(3):
        threading.Thread(target=send_events, daemon=True,
                         args=(book, arg.callback_port, os.environb[b"PROVIDER_SECRET"])).start()
    server.serve_forever()


if __name__ == "__main__":
    main()
