#!/usr/bin/python3
"""The application: takes payments, one charge per Idempotency-Key.

Read pay() and charge_once().  A payment is three short transactions around
one outside call:

    claim                             nobody else runs this request
    checkpoint + payment row          from here on a crash may have charged
        charge at the provider        no transaction and no connection is held
    finish + payment settled          rows and answer commit together

Wherever the process is killed, the database knows how far it had come:

    before the checkpoint commits     on_abandon = retry: nothing was sent, so
                                      the client's next retry starts again
    after it                          on_abandon = unknown: nobody charges
                                      again; the reconciler asks the provider
    after the finish                  every retry gets the stored bytes

Nothing runs again because time passed, and no outcome is ever guessed.
"""

import argparse
import json
import os
import re
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import psycopg
from psycopg.types.json import Jsonb

from book import LOST, SCOPE, Answer, Database, finish, order_number, problem, settle
from gateway import Gateway, authentic

CLAIM = """
    SELECT * FROM idem_claim(%(scope)s, %(key)s, %(user)s, request => %(request)s,
                             ttl => '7 days', lease => %(lease)s, on_abandon => 'retry')"""

CHECKPOINT = """
    SELECT idem_checkpoint(%(scope)s, %(key)s, %(user)s, token => %(token)s,
                           checkpoint => 'charging', checkpoint_data => %(data)s,
                           on_abandon => 'unknown')"""

LOOKUP = "SELECT * FROM idem_lookup(%(scope)s, %(key)s, %(user)s)"


class Shop:
    """The two things a request needs, and the rules it runs under."""

    def __init__(self, db, gateway, lease, secret):
        self.db, self.gateway, self.lease, self.secret = db, gateway, lease, secret

    def pay(self, key, user, terms):
        """One attempt at one payment; returns the Answer to send."""
        who = dict(scope=SCOPE, key=key, user=user)
        with self.db.transaction() as cur:
            claim = cur.execute(CLAIM, dict(who, request=Jsonb(terms), lease=self.lease)).fetchone()
        if claim.outcome != "claimed":
            return answer_for(claim)
        try:
            return self.charge_once(who, claim.token, terms)
        except psycopg.Error as error:
            if error.diag.sqlstate != LOST:
                raise  # the record stays as it is, and says who may go on
        # We were replaced while we were away, and our rows have rolled back.
        # What we found no longer counts: tell what the record says.
        log("lost claim")
        with self.db.transaction() as cur:
            return answer_for(cur.execute(LOOKUP, who).fetchone())

    def charge_once(self, who, token, terms):
        """The owner's part; returns the Answer, or raises ID001 if replaced."""
        order_no = order_number(who["key"], who["user"])

        with self.db.transaction() as cur:
            cur.execute(CHECKPOINT, dict(who, token=token, data=Jsonb({"order_no": order_no})))
            cur.execute("""INSERT INTO payment (order_no, user_id, amount, currency)
                           VALUES (%s, %s, %s, %s) ON CONFLICT (order_no) DO NOTHING""",
                        [order_no, who["user"], terms["amount"], terms["currency"]])

        verdict = self.gateway.charge(order_no, terms)
        if verdict.status == "not_sent":  # the one case that is safe to run again
            with self.db.transaction() as cur:
                finish(cur, who, token, "released")
            return unavailable("provider-unreachable")
        if not verdict.final:  # time-out, closed connection, 5xx: do not judge, ask
            verdict = self.gateway.query(order_no)

        with self.db.transaction() as cur:
            if verdict.final:
                return settle(cur, who, token, order_no, verdict, by="app")
            # Even "absent" is no proof: the charge may still be on its way.
            log("unknown outcome")
            finish(cur, who, token, "unknown")
        return OUTCOME_UNKNOWN

    def receive(self, headers, body):
        """A callback: authentic or refused, and applied once.

        The mark of idem_once and what the event changes commit together, so a
        crash in between leaves neither, and the provider sends it again.
        """
        if not authentic(self.secret, headers, body):
            log("forged callback")
            return problem(401, "callback-not-authentic", "The signature is missing, wrong or old")
        event = json.loads(body)
        with self.db.transaction() as cur:
            cur.execute("SELECT idem_once('provider callback', %(event_id)s)", event)
            if cur.fetchone()[0]:
                cur.execute("""INSERT INTO payment_event (event_id, order_no, seq, kind)
                               VALUES (%(event_id)s, %(order_no)s, %(seq)s, %(kind)s)""", event)
                cur.execute("""UPDATE payment SET provider_state = %(kind)s, event_seq = %(seq)s
                               WHERE order_no = %(order_no)s AND event_seq < %(seq)s""", event)
            else:
                log("repeated callback")
        return Answer(200, {}, "")


# What a client is told of a record that it does not own: draft-ietf-httpapi-
# idempotency-key-header with RFC 9457 problem documents.

IN_FLIGHT = problem(409, "request-in-flight", "This payment is being processed",
                    {"Retry-After": "1"})
OUTCOME_UNKNOWN = problem(409, "outcome-unknown", "It is being found out whether this was paid",
                          detail="Ask again later with the same key. Do not pay with a new one.")
KEY_MISSING = problem(400, "idempotency-key-missing", "This operation requires an Idempotency-Key")
KEY_INVALID = problem(400, "idempotency-key-invalid", "This Idempotency-Key cannot be used")


def unavailable(kind):
    return problem(503, kind, "Nothing was charged by this call; retry with the same key",
                   {"Retry-After": "1"})


def answer_for(record):
    match record.outcome:
        case "replayed":
            headers = record.response_headers | {"Idempotency-Replayed": "true"}
            return Answer(record.response_code, headers, record.response_body)
        case "in_progress":
            return IN_FLIGHT
        case "unknown":  # no Retry-After: no amount of waiting is known to help
            return OUTCOME_UNKNOWN
        case "mismatch":
            return problem(422, "idempotency-key-reused", "This key was used for another payment",
                           new_key_is_safe=record.state not in ("processing", "unknown"))
        case "released" | "absent":
            return unavailable("try-again")


class Handler(BaseHTTPRequestHandler):
    """HTTP in, Answer out.  No decision about a payment is made here."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        try:
            match self.path:
                case "/payments":
                    answer = self.payments(body)
                case "/callbacks":
                    answer = self.server.shop.receive(self.headers, body)
                case _:
                    answer = problem(404, "not-found", "No such resource")
        except psycopg.Error as error:  # whatever had committed stands; the record knows
            log(f"database: {error.diag.sqlstate} {error}")
            answer = problem(503, "unavailable", "Retry with the same key", {"Retry-After": "1"})
        try:
            self.send(answer)
        except ConnectionError:
            pass  # the client is gone; it will ask again with the same key

    def payments(self, body):
        user = self.headers.get("X-User")  # stands for what authentication established
        if not user:
            return problem(401, "not-authenticated", "Who is paying?")
        keys = self.headers.get_all("Idempotency-Key", [])
        if len(keys) != 1 or not keys[0]:
            return KEY_MISSING
        terms = parse_terms(body)
        if terms is None:
            return problem(400, "invalid-payment", "Expected amount, currency and card")
        try:
            return self.server.shop.pay(bare(keys[0]), user, terms)
        except psycopg.errors.InvalidParameterValue as error:
            if error.diag.column_name != "key":
                raise  # ours, not the client's
            return KEY_INVALID

    def send(self, answer):
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        body = answer.body.encode()
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def bare(key):
    """The draft's structured-field string "k", or k as many clients send it."""
    quoted = re.fullmatch(r'"((?:[^"\\]|\\["\\])*)"', key)
    return re.sub(r"\\(.)", r"\1", quoted[1]) if quoted else key


def parse_terms(body):
    """Amount, currency and card of a request, or None if it is not just that."""
    try:
        terms = json.loads(body)
        amount, currency, card = (terms[name] for name in ("amount", "currency", "card"))
    except (ValueError, TypeError, KeyError):
        return None
    valid = (len(terms) == 3 and type(amount) is int and 0 < amount < 10**12
             and currency in ("EUR", "USD")
             and isinstance(card, str) and re.fullmatch(r"\w{1,64}", card, re.ASCII))
    return terms if valid else None


def log(line):
    print(line, file=sys.stderr, flush=True)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--port", type=int, required=True)
    options.add_argument("--provider-port", type=int, required=True)
    options.add_argument("--provider-timeout", type=float, default=5)
    options.add_argument("--lease", default="60 s", help="longer than a charge and a query take")
    options.add_argument("--pool", type=int, default=8)
    arg = options.parse_args()

    server = Server(("127.0.0.1", arg.port), Handler)
    server.shop = Shop(Database(arg.pool), Gateway(arg.provider_port, arg.provider_timeout),
                       arg.lease, os.environb[b"PROVIDER_SECRET"])
    server.serve_forever()


if __name__ == "__main__":
    main()
