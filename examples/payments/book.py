"""The shop's book, and what a client is told: shared by app.py and reconciler.py.

Whoever learns of a payment's end, the application or the reconciler, settles
it here, so both write the same rows and store the same bytes.
"""

import hashlib
import json
import queue
from contextlib import contextmanager
from typing import NamedTuple

import psycopg
from psycopg.rows import namedtuple_row
from psycopg.types.json import Jsonb

SCOPE = "payment"
LOST = "ID001"  # SQLSTATE: the claim is no longer ours


class Answer(NamedTuple):
    status: int
    headers: dict
    body: str


def problem(status, kind, title, headers=None, **members):
    """An RFC 9457 problem document."""
    body = {"type": f"https://shop.example/problems/{kind}", "title": title, "status": status}
    headers = {"Content-Type": "application/problem+json", **(headers or {})}
    return Answer(status, headers, json.dumps(body | members))


def order_number(key, user):
    """The downstream key: the merchant order number of a request.

    From the identity alone, so that every attempt, of whichever process, names
    the same order and the provider can charge it once.  A token or an attempt
    number in it would be a new order, and a second charge.
    """
    identity = json.dumps([SCOPE, key, user])
    return hashlib.sha256(identity.encode()).hexdigest()[:32]


class Database:
    """A small pool.  A connection is borrowed for one transaction at a time,
    never while the provider is being called."""

    def __init__(self, size):
        self._idle = queue.LifoQueue()
        for _ in range(size):
            self._idle.put(None)  # connected when first needed

    @contextmanager
    def transaction(self):
        conn = self._idle.get()
        try:
            if conn is None or conn.closed:
                conn = None
                conn = psycopg.connect("", autocommit=True, row_factory=namedtuple_row)
            with conn.transaction(), conn.cursor() as cur:
                yield cur
        finally:
            self._idle.put(conn)


FINISH = """
    SELECT idem_finish(%(scope)s, %(key)s, %(user)s, token => %(token)s, state => %(state)s,
                       response_code => %(code)s, response_headers => %(headers)s,
                       response_body => %(body)s)"""


def finish(cur, who, token, state, answer=Answer(None, None, None)):
    """Finish the record; raises ID001 if another attempt owns it by now."""
    headers = answer.headers and Jsonb(answer.headers)
    cur.execute(FINISH, dict(who, token=token, state=state, code=answer.status,
                             headers=headers, body=answer.body))


def settle(cur, who, token, order_no, verdict, by):
    """Write the provider's final word into both records, in one transaction.

    The idempotency record comes first.  It is the lock: a process that was
    replaced stops here, before it touches the payment, and everybody takes the
    two locks in the same order.
    """
    charged = verdict.status == "charged"
    answer = receipt(cur, order_no, verdict) if charged else refusal(order_no, verdict)
    finish(cur, who, token, "succeeded" if charged else "failed", answer)
    cur.execute("""UPDATE payment SET status = %s, charge_id = %s, settled_by = %s
                   WHERE order_no = %s AND status = 'pending'""",
                ["succeeded" if charged else "refused", verdict.charge_id, by, order_no])
    return answer


def receipt(cur, order_no, verdict):
    cur.execute("SELECT amount, currency FROM payment WHERE order_no = %s", [order_no])
    amount, currency = cur.fetchone()
    body = {"order_no": order_no, "amount": amount, "currency": currency,
            "charge_id": verdict.charge_id}
    return Answer(201, {"Content-Type": "application/json"}, json.dumps(body))


def refusal(order_no, verdict):
    """No money moved, and none will: paying with a new key is safe."""
    kind = "card-declined" if verdict.status == "declined" else "payment-not-made"
    return problem(402, kind, "The payment was not made", order_no=order_no, detail=verdict.reason)
