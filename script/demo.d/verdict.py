"""The verdict: what must hold whatever happened, counted from two sides.

One side is what the clients were told, every answer of every try; the other is
what the database holds in the end.  The cart that an order row holds says which
of two different requests under one key came first; from there on

    that cart       every answer is the same, byte for byte
    the other one   every answer is "mismatch", and shows nothing of the order
"""

import collections
import json
import os
import pathlib
import subprocess
import sys
from typing import NamedTuple

import psycopg
from psycopg.rows import namedtuple_row
from psycopg.types.json import Jsonb

import orders
from client import AFTER_COMMIT, AT_COMMIT, LOST
from screen import number

BOOKED = """
    SELECT idem_key, array_agg(cart), array_agg(id) FROM orders
    WHERE customer LIKE 'customer-%%' GROUP BY idem_key"""

RECORDS = "SELECT state, count(*) FROM idem_record WHERE scope = 'create_order' GROUP BY state"


class Check(NamedTuple):
    ok: bool
    text: str
    found: str


class Books:
    """Both sides, laid side by side."""

    def __init__(self, plan, storm, admin):
        self.plan, self.storm = plan, storm
        self.rows = {key: (carts, ids) for key, carts, ids in admin.execute(BOOKED)}
        self.states = dict(admin.execute(RECORDS).fetchall())
        self.answers = collections.defaultdict(list)    # order -> tries that got one
        self.right, self.wrong = [], []                 # final tries, by cart
        for one in storm.tries:
            if one.outcome in (LOST, "in_progress"):
                continue
            (self.right if self.is_right(one) else self.wrong).append(one)
            if one.outcome in ("claimed", "replayed"):
                self.answers[one.order].append(one)

    def is_right(self, one):
        return self.cart_of(one.order) == self.plan.orders[one.order].carts[one.cart]

    def cart_of(self, order):
        carts, _ = self.rows.get(self.plan.orders[order].key, ([None], []))
        return carts[0]

    def lost(self, *steps):
        return [one for one in self.storm.tries if one.outcome == LOST and one.step in steps]


def none(text, count):
    return Check(count == 0, text, number(count) if count else "none")


def every(text, good, total):
    return Check(0 < good == total, text, f"{good:,} of {total:,}")


def checks(books, audit):
    """Every invariant, in the order in which one would ask."""
    yield from checks_of_orders(books)
    yield from checks_of_answers(books, audit)
    yield from checks_of_changed_carts(books)
    yield from checks_of_trouble(books)


def checks_of_orders(books):
    keys = len(books.plan.orders)
    rows = sum(len(ids) for _, ids in books.rows.values())
    claimed = collections.Counter(one.order for one in books.storm.tries
                                  if one.outcome == "claimed")
    yield Check(rows == keys, "orders in the table = distinct keys", f"{rows:,} = {keys:,}")
    yield none("keys with no order, or more than one",
               sum(len(books.rows.get(order.key, (0, ()))[1]) != 1
                   for order in books.plan.orders))
    yield none("keys for which two clients were told that they ran it",
               sum(count > 1 for count in claimed.values()))
    yield none("records left unfinished by cuts, kills and the crash",
               sum(books.states.values()) - books.states.get("succeeded", 0))


def checks_of_answers(books, audit):
    answers = [one for tries in books.answers.values() for one in tries]
    firsts = {order: tries[0].answer for order, tries in books.answers.items()}
    old = [order for order, tries in books.answers.items()
           if books.storm.crashed and tries[0].ended < books.storm.crashed]

    yield every("answers byte-equal to the first one of their key",
                sum(one.answer == firsts[one.order] for one in answers), len(answers))
    yield every("one more retry of every key: byte-equal",
                sum(audit.answers[order] == first for order, first in firsts.items()),
                len(books.plan.orders))
    yield every("of them, answered before the crash and replayed after it",
                sum(audit.answers[order] == firsts[order] for order in old), len(old))
    yield none("transaction ids taken by those replays", audit.wrote)
    yield every("answers that name the order that is in the table",
                sum([audit.order_ids[at]] == books.rows.get(order.key, (0, ()))[1]
                    for at, order in enumerate(books.plan.orders)), len(books.plan.orders))


def checks_of_changed_carts(books):
    yield every("retries with a changed body refused, and shown nothing",
                sum(map(refused, books.wrong)), len(books.wrong))
    yield none("retries with the right body refused",
               sum(one.outcome not in ("claimed", "replayed") for one in books.right))


def refused(one):
    return one.outcome == "mismatch" and one.answer[0] == 422 and "receipt" not in one.answer[2]


def checks_of_trouble(books):
    storm = books.storm
    yield none("errors but lost connections, in any isolation level", len(storm.errors))
    happened = {"a backend terminated": storm.kills, "a server crash": storm.crashed,
                "a cut during COMMIT": books.lost(AT_COMMIT),
                "a cut after COMMIT": books.lost(AFTER_COMMIT)}
    yield none("kinds of trouble that did not come about",
               sum(not some for some in happened.values()))


def server_log():
    """What the server has to say about itself."""
    log = pathlib.Path(os.environ["PGHOST"], "server.log").read_text(errors="replace")
    lines = log.splitlines()
    deaths = [line for line in lines if " was terminated by signal " in line or "PANIC: " in line]
    errors = [line for line in lines if "ERROR: " in line and "permission denied" not in line]
    yield none("server processes that died, but for the one that was killed", len(deaths) - 1)
    yield none("errors in the server's log, but for the denied ones", len(errors))


class Audit:
    """One more retry of every key, all in a single transaction."""

    def __init__(self, books):
        with psycopg.connect(user="shop", row_factory=namedtuple_row) as conn:
            claims = [conn.execute(orders.CLAIM, dict(
                scope=orders.SCOPE, key=order.key, customer=order.customer, wait="0",
                cart=Jsonb(books.cart_of(at)))).fetchone()
                for at, order in enumerate(books.plan.orders)]
            self.wrote = conn.execute(
                "SELECT count(pg_current_xact_id_if_assigned()) AS xids").fetchone().xids
            conn.rollback()
        self.answers = [orders.answer_for(claim)[1:] for claim in claims]
        self.order_ids = [order_id(claim) for claim in claims]


def order_id(claim):
    """The order that an answer speaks of."""
    return json.loads(claim.response_body or "{}").get("order")


def another_program(books, audit):
    """The example's command line, as a process of its own, with a key of the storm's."""
    order, cart = books.plan.orders[0], books.cart_of(0) or books.plan.orders[0].carts[0]
    run = subprocess.run([sys.executable, orders.__file__, "--customer", order.customer,
                          "--key", order.key, cart["item"], str(cart["qty"])],
                         env=dict(os.environ, PGUSER="shop", PYTHONUTF8="1"),
                         stdout=subprocess.PIPE, encoding="utf-8")
    body = audit.answers[0][2]
    return every("another program that asks with one of the keys: byte-equal",
                 int("(replayed)" in run.stdout and run.stdout.endswith(f"\n\n{body}\n")), 1)


FORBIDDEN = ("SELECT FROM idem_record", "DELETE FROM idem_record",
             "SELECT * FROM idem_sweep()", "CALL idem_sweep_all()",
             "SELECT idem_forget('create_order', 'k-1001', '42')",
             "SELECT * FROM idem_takeover('create_order', 'k-1001', '42')")


def privileges():
    """What the clients' role could have done to the records, had it tried."""
    refusals = 0
    with psycopg.connect(user="shop", autocommit=True) as conn:
        for statement in FORBIDDEN:
            try:
                conn.execute(statement)
            except psycopg.errors.InsufficientPrivilege:
                refusals += 1
    return every("ways to read, sweep or seize records denied to the clients",
                 refusals, len(FORBIDDEN))
