#!/usr/bin/python3
"""The whole story: payments under fire, and the proof that the books agree.

Starts the provider, the application and two reconcilers as processes of their
own, lets clients pay (some of them twice at once) until each has a final
answer, and meanwhile kills the application with SIGKILL at random points,
stops it for longer than its leases, kills the others now and then, and forges
callbacks.  Then it checks what must hold, whatever happened.

Needs a server with the extension and the right to create a database and the
roles pay_app and pay_ops, which must be able to log in: a throw-away cluster.
Connection settings are those of libpq's environment (PGHOST, PGPORT, ...).
"""

import argparse
import itertools
import json
import os
import queue
import random
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from contextlib import closing
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "lib"))

import psycopg  # noqa: E402

import provider  # noqa: E402
from book import order_number  # noqa: E402
from stage import Checks, Program, Stage, free_ports, wait_until  # noqa: E402

SECRET = os.urandom(16).hex()

# Short, so that the story fits into half a minute.
LEASE = "1 s"
PROVIDER_TIMEOUT = 0.4  # a charge and a query fit into a lease
PROVIDER_LATE = 1.5     # past the time-out, and past the reconciler's visit

CLIENTS = 16
PATIENCE = 300          # seconds after which a scenario that hangs is a failure
STRIKES = {"application killed": 24, "application stalled": 2,
           "provider killed": 2, "reconciler killed": 2}


class Payment(NamedTuple):
    user: str
    key: str
    terms: dict

    @property
    def order_no(self):
        return order_number(self.key, self.user)


def shopping_list(luck, number):
    """Payments to make.  Keys repeat between users, as clients' keys do."""
    return [Payment(f"user-{n % 50}", f"cart-{n // 50}",
                    {"amount": luck.randint(100, 99999), "currency": luck.choice(["EUR", "USD"]),
                     "card": luck.choices(["valid", "declined"], [92, 8])[0]})
            for n in range(number)]


# ---------------------------------------------------------------- processes

class Process(Program):
    """One of the programs, which can be struck down and started again."""

    def __init__(self, place, name, script, *argv, user=None, port=None):
        env = {"PROVIDER_SECRET": SECRET} | ({"PGUSER": user} if user else {})
        super().__init__(place, name, [sys.executable, HERE / script, *argv], env, port)
        self.start()

    def stall(self, until):
        """Stop it, as a long pause of a virtual machine would, and let it go on."""
        self.child.send_signal(signal.SIGSTOP)
        try:
            until()
        finally:
            self.child.send_signal(signal.SIGCONT)

    def logged(self, text):
        return sum(line.startswith(text) for line in self.log.read_text().splitlines())


# -------------------------------------------------------------------- place

class Place(Stage):
    """The application's database, and the provider's book."""

    def __init__(self):
        super().__init__("payments")
        self.provider_book = self.directory / "provider.db"

    def furnish(self):
        with self.connect() as conn:
            conn.execute((HERE / "schema.sql").read_text())

    def provider_rows(self, query):
        with closing(sqlite3.connect(self.provider_book, timeout=30)) as book:
            return book.execute(query).fetchall()


# ------------------------------------------------------------------ clients

class Reply(NamedTuple):
    status: int
    kind: str
    replayed: bool
    body: bytes


def post(port, path, body, headers):
    """A Reply, or None if none came."""
    wire = HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        wire.request("POST", path, body, headers)
        response = wire.getresponse()
        if response.length is None:
            return None  # cut off before its end was announced
        return Reply(response.status, response.getheader("Content-Type"),
                     response.getheader("Idempotency-Replayed") == "true", response.read())
    except (OSError, HTTPException):
        return None
    finally:
        wire.close()


class Clients:
    """People who pay, and who ask again with the same key until they are told."""

    def __init__(self, port):
        self.port = port
        self.work = queue.Queue(maxsize=CLIENTS)
        self.lock = threading.Lock()
        self.answers = defaultdict(list)  # payment's order number -> final replies
        self.seen = Counter()             # what kinds of answers came
        self.deadline = time.monotonic() + PATIENCE
        self.threads = [threading.Thread(target=self.serve, daemon=True) for _ in range(CLIENTS)]
        for thread in self.threads:
            thread.start()

    def serve(self):
        while (payment := self.work.get()) is not None:
            self.pay(payment)

    def pay(self, payment):
        while time.monotonic() < self.deadline:
            reply = self.ask(payment)
            if reply and reply.status not in (409, 503):
                with self.lock:
                    self.answers[payment.order_no].append(reply)
                return
            time.sleep(random.uniform(0.05, 0.25))

    def ask(self, payment, **headers):
        headers = {"X-User": payment.user, "Idempotency-Key": payment.key} | headers
        reply = post(self.port, "/payments", json.dumps(payment.terms), headers)
        with self.lock:
            self.seen[describe(reply)] += 1
        return reply

    def finish(self):
        for _ in self.threads:
            self.work.put(None)
        for thread in self.threads:
            thread.join()


def describe(reply):
    if reply is None:
        return "no answer at all"
    if reply.kind != "application/problem+json":
        what = "paid"
    else:
        what = json.loads(reply.body)["type"].rsplit("/", 1)[1]
    return f"{reply.status} {what}{', replayed' if reply.replayed else ''}"


class Forger(threading.Thread):
    """Somebody else who posts callbacks to the application."""

    def __init__(self, port, payments, luck):
        super().__init__(daemon=True)
        self.port, self.payments, self.luck = port, payments, luck
        self.answers = Counter()
        self.enough = threading.Event()
        self.start()

    def run(self):
        tricks = itertools.cycle([self.unsigned, self.guessed, self.tampered, self.outdated])
        while not self.enough.wait(0.1):
            event = {"event_id": f"forged_{os.urandom(4).hex()}", "seq": 9, "kind": "settled",
                     "order_no": self.luck.choice(self.payments).order_no}
            reply = post(self.port, "/callbacks", *next(tricks)(json.dumps(event).encode()))
            if reply:
                self.answers[reply.status] += 1

    def unsigned(self, body):
        return body, {}

    def guessed(self, body):
        return body, signature(b"a guess", body)

    def tampered(self, body):
        return body, signature(SECRET.encode(), body + b" ")

    def outdated(self, body):
        """Authentic, but overheard an hour ago."""
        return body, signature(SECRET.encode(), body, age=3600)


def signature(secret, body, age=0):
    timestamp = int(time.time()) - age
    return {"Provider-Timestamp": str(timestamp),
            "Provider-Signature": provider.sign(secret, timestamp, body)}


# ----------------------------------------------------------------- scenario

class Scenario:
    def __init__(self, place, seed, number):
        self.place, self.luck = place, random.Random(seed)
        self.payments = shopping_list(self.luck, number)
        self.struck = Counter()
        app_port, provider_port = free_ports(2)
        self.provider_port = provider_port
        self.provider = Process(
            place, "provider", "provider.py", "--port", provider_port, "--callback-port", app_port,
            "--state", place.provider_book, "--seed", seed, "--late", PROVIDER_LATE,
            port=provider_port)
        calls = ("--provider-port", provider_port, "--provider-timeout", PROVIDER_TIMEOUT,
                 "--lease", LEASE)
        self.app = Process(place, "app", "app.py", "--port", app_port, *calls,
                           user="pay_app", port=app_port)
        self.reconcilers = [
            Process(place, f"reconciler-{n}", "reconciler.py", *calls, "--every", 0.3,
                    user="pay_ops") for n in (1, 2)]
        self.clients = Clients(app_port)
        self.forger = Forger(app_port, self.payments, random.Random(seed))

    def play(self):
        """Feed the clients, and strike in between.

        No payment is handed out before the victim is up again, so the number
        of strikes does not depend on how fast the machine is, and each of them
        meets clients in the middle of something.
        """
        strikes = self.plan()
        for n, payment in enumerate(self.payments):
            for _ in range(self.luck.choices([1, 2], [80, 20])[0]):  # a double click
                self.clients.work.put(payment)
            if n in strikes:
                time.sleep(self.luck.uniform(0, 0.15))
                self.strike(strikes[n])
        self.clients.finish()
        self.settled = wait_until(self.quiet)
        self.forger.enough.set()
        self.forger.join()

    def plan(self):
        kinds = list(Counter(STRIKES).elements())
        self.luck.shuffle(kinds)
        moments = self.luck.sample(range(CLIENTS, len(self.payments)), len(kinds))
        return dict(zip(moments, kinds))

    def strike(self, kind):
        self.struck[kind] += 1
        if kind == "application stalled":
            # From a charge that has just begun until the reconcilers have replaced it
            # everywhere: what comes back believes that it still owns its claims.
            wait_until(self.charging, 5)
            return self.app.stall(lambda: wait_until(lambda: not self.pending(), 5))
        victim = {"application killed": self.app, "provider killed": self.provider,
                  "reconciler killed": self.luck.choice(self.reconcilers)}[kind]
        victim.kill()
        if victim is self.provider:
            time.sleep(self.luck.uniform(0.1, 0.5))  # long enough to be missed
        victim.start()

    def charging(self):
        return self.place.rows("SELECT FROM payment WHERE status = 'pending'"
                               " AND created_at > clock_timestamp() - interval '20 ms'")

    def pending(self):
        return self.place.rows("SELECT FROM payment WHERE status = 'pending'")

    def quiet(self):
        return not (self.pending()
                    or self.place.rows("SELECT FROM idem_unresolved", user="pay_ops")
                    or self.place.provider_rows("SELECT 1 FROM events WHERE sends_left > 0"))

    def report(self):
        command = [sys.executable, str(HERE / "report.py"),
                   "--provider-port", str(self.provider_port)]
        env = {**os.environ, "PGDATABASE": self.place.database, "PGUSER": "pay_ops"}
        return subprocess.run(command, env=env, capture_output=True, text=True)


# ------------------------------------------------------------------- checks

def check_answers(check, story):
    answers, payments = story.clients.answers, story.payments
    odd = {describe(reply) for replies in answers.values() for reply in replies
           if reply.status not in (201, 402)}
    check.that(len(answers) == len(payments) and not odd,
               f"each of {len(payments)} payments got a final answer",
               f"{len(answers)} did; unexpected: {odd or 'none'}")
    again = {payment.order_no: story.clients.ask(payment) for payment in payments}
    check.that(all(reply and reply.replayed for reply in again.values()),
               "asked once more, every one is a replay")
    for order_no, reply in again.items():
        answers[order_no].append(reply)
    torn = [order_no for order_no, replies in answers.items()
            if len({reply and (reply.status, reply.kind, reply.body) for reply in replies}) > 1]
    check.that(not torn, "all retries of a payment got one and the same answer, byte for byte",
               torn)


def check_money(check, story):
    place = story.place
    told = {order_no for order_no, replies in story.clients.answers.items()
            if replies[0].status == 201}
    ours = {tuple(row) for row in place.rows(
        "SELECT order_no, charge_id, amount, currency FROM payment WHERE status = 'succeeded'")}
    charges = place.provider_rows("SELECT * FROM charges")
    check.that(ours == set(charges), "provider's charges = our succeeded payments",
               ours ^ set(charges))
    check.that({row[0] for row in ours} == told, "our succeeded payments = clients told 'paid'")
    charged = Counter(order_no for order_no, *_ in charges)
    twice = [order_no for order_no, times in charged.items() if times > 1]
    check.that(not twice, "no order was charged twice", twice)
    # The provider would have caught a second one; the application must not need that.
    asked = Counter(order_no for (order_no,) in place.provider_rows("SELECT order_no FROM requests"))
    again = [order_no for order_no, times in asked.items() if times > 1]
    check.that(not again, f"each of {len(asked)} charges was asked for once", again)
    wanted = {p.order_no: (p.terms["amount"], p.terms["currency"]) for p in story.payments}
    check.that(all(wanted.get(order_no) == (amount, currency)
                   for order_no, _, amount, currency in charges),
               "every charge is of the amount that its client asked for")
    refused = {order_no for (order_no,) in place.rows(
        "SELECT order_no FROM payment WHERE status = 'refused'")}
    check.that(refused == set(story.clients.answers) - told and not refused & set(charged),
               "the others were refused, told so, and not charged")


def check_records(check, story):
    check.that(story.settled, "nothing is left unresolved, pending or undelivered",
               story.place.rows("SELECT * FROM idem_unresolved"))
    live = story.place.rows("SELECT scope, key, principal, state FROM idem_record"
                            " WHERE state NOT IN ('succeeded', 'failed')")
    check.that(not live, "every record is succeeded or failed", live)


def check_callbacks(check, story):
    place = story.place
    sent = {row[0] for row in place.provider_rows("SELECT event_id FROM events")}
    applied = Counter(row[0] for row in place.rows("SELECT event_id FROM payment_event"))
    check.that(applied == Counter(sent), "each callback was applied exactly once",
               applied - Counter(sent) or Counter(sent) - applied)
    behind = place.rows("SELECT order_no FROM payment WHERE status = 'succeeded'"
                        " AND provider_state IS DISTINCT FROM 'settled'")
    check.that(not behind, "out of order or not, the newest event stands", behind)
    forged = story.forger.answers
    check.that(set(forged) <= {401, 503} and forged[401] > 0, "every forged callback was refused",
               forged)


def check_protocol(check, story):
    first = story.payments[0]
    ask = story.clients.ask

    def status(payment, **headers):
        reply = ask(payment, **headers)
        return reply and (reply.status, json.loads(reply.body).get("type", "").rsplit("/", 1)[-1])

    check.that(post(story.clients.port, "/payments", json.dumps(first.terms),
                    {"X-User": first.user}).status == 400, "without a key: 400")
    check.that(status(first, **{"Idempotency-Key": "k" * 256}) == (400, "idempotency-key-invalid"),
               "with a key that is too long: 400")
    other = first._replace(terms=first.terms | {"amount": 1})
    check.that(status(other) == (422, "idempotency-key-reused"),
               "a used key for another payment: 422")
    quoted = ask(first, **{"Idempotency-Key": f'"{first.key}"'})
    check.that(quoted and quoted.body == story.clients.answers[first.order_no][0].body,
               "the key as a structured-field string is the same key")


def check_privileges(check, story):
    for command in ("SELECT FROM idem_record", "SELECT FROM idem_unresolved",
                    "SELECT FROM idem_takeover('payment', 'k', 'u')",
                    "SELECT idem_forget('payment', 'k', 'u')", "SELECT FROM idem_sweep()"):
        try:
            story.place.rows(command, user="pay_app")
            permitted = True
        except psycopg.errors.InsufficientPrivilege:
            permitted = False
        check.that(not permitted, f"pay_app may not: {command}")


def check_processes(check, story):
    check.that(story.struck == Counter(STRIKES),
               f"the application was killed {STRIKES['application killed']} times", story.struck)
    # A stalled process may find that the server has ended its session.
    allowed = re.compile("database: (25P03|None) ")
    odd = [f"{process.name}: {line}" for process in story.place.programs
           for line in process.log.read_text().splitlines()
           if "Error" in line or line.startswith("database:") and not allowed.match(line)]
    check.that(not odd, "no process met an error that it did not expect", "\n".join(odd))


def check_report(check, story):
    report = story.report()
    check.say("\n" + report.stdout + report.stderr)
    check.that(report.returncode == 0, "the daily report finds no difference")
    victim = story.place.rows("DELETE FROM payment WHERE order_no = (SELECT min(order_no)"
                              " FROM payment WHERE status = 'succeeded') RETURNING order_no")[0][0]
    report = story.report()
    check.that(report.returncode == 1 and victim in report.stdout,
               "and finds one that was planted", report.stdout)


# -------------------------------------------------------------------- story

def tell(check, story, seconds):
    """The table of what happened."""
    def section(title, counts):
        check.say(f"\n{title}")
        for what, number in counts:
            check.say(f"  {number:6}  {what}")

    place = story.place
    sent = place.provider_rows("SELECT sum(sent), count(*) FROM events")[0]
    section(f"{len(story.payments)} payments by {CLIENTS} clients in {seconds:.0f} s; meanwhile",
            [*story.struck.items(), *place.provider_rows("SELECT * FROM faults ORDER BY 1"),
             ("callbacks forged", story.forger.answers.total())])
    section("What clients were answered", sorted(story.clients.seen.items()))
    section("How it ended", [
        *place.rows("SELECT status || ', settled by the ' || settled_by, count(*) FROM payment"
                    " GROUP BY 1 ORDER BY 1"),
        ("claims found lost by their owner (ID001)", story.app.logged("lost claim")),
        ("charges whose outcome the application could not tell",
         story.app.logged("unknown outcome")),
        (f"callbacks sent for {sent[1]} events", sent[0]),
        ("of them recognized as repeated", story.app.logged("repeated callback")),
        ("database errors met by the application", story.app.logged("database:"))])
    check.say()


def run(place, check, arg):
    check.say(f"seed {arg.seed}")
    place.furnish()
    began = time.monotonic()
    story = Scenario(place, arg.seed, arg.payments)
    story.play()
    tell(check, story, time.monotonic() - began)
    for part in (check_answers, check_money, check_records, check_callbacks, check_protocol,
                 check_privileges, check_processes, check_report):
        part(check, story)


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--seed", type=int,
                         default=int(os.environ.get("PAYMENTS_SEED") or random.randrange(10**6)))
    options.add_argument("--payments", type=int, default=500)
    options.add_argument("--tap", action="store_true", help="print TAP")
    options.add_argument("--keep", action="store_true", help="keep the database and the logs")
    arg = options.parse_args()
    if arg.payments < 100:
        options.error("at least 100 payments, or there is not enough to strike at")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))

    check = Checks(arg.tap)
    place = Place()
    try:
        run(place, check, arg)
    finally:
        place.clear(arg.keep)
    sys.exit(0 if check.close() else 1)


if __name__ == "__main__":
    main()
