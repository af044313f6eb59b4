"""The clients: processes that send orders over connections that fail.

Each client has a connection of its own and takes the next send from the
timetable.  It does what a client should: no answer, or "still running", means
send the same thing again.  Whatever it was told is kept for the verdict.

A cut is real: the socket is shut down under the driver, by a timer at a moment
that has nothing to do with what the server is doing just then.
"""

import os
import random
import signal
import socket
import threading
import time
import traceback
from typing import NamedTuple

import psycopg

from plan import CUT, CUT_AFTER_COMMIT, CUT_AT_COMMIT

LOST = "no answer"

PATIENCE = 120          # seconds until a client gives up on a send, which is a failure

STEPS = ("before the claim was answered", "with the key claimed or decided",
         "with the order written", "with the answer stored",
         "during COMMIT", "after COMMIT, before the answer was read")
AT_COMMIT, AFTER_COMMIT = 4, 5

BY_SERVER = "connection lost by the server"

GOING_DOWN = ("57P01", "57P02", "57P03")    # terminated, crash of another, recovering


class Try(NamedTuple):
    """What became of one request."""

    order: int
    cart: int
    outcome: str        # of the claim, or LOST
    answer: tuple       # (code, headers, body); None if lost
    cause: str          # of the loss
    step: int           # how far the request had come when it was lost
    ended: float


class SlowCursor(psycopg.Cursor):
    """A round trip takes a little while, and is counted."""

    def execute(self, *args, **kwargs):
        self.connection.travel()
        super().execute(*args, **kwargs)
        self.connection.step += 1
        return self


class Wire(psycopg.Connection):
    """A connection that can be cut, and that knows how far its request came."""

    rng, step, cut, cut_after = None, 0, None, 0

    def travel(self):
        time.sleep(min(self.rng.expovariate(500), 0.015))

    def commit(self):
        self.travel()
        self.step = AT_COMMIT
        if self.cut == CUT_AT_COMMIT:
            self.pgconn.send_query(b"COMMIT")
            self.pgconn.flush()
            time.sleep(self.cut_after)
            self.sever()
        else:
            super().commit()
            self.step = AFTER_COMMIT
        if self.cut in (CUT_AT_COMMIT, CUT_AFTER_COMMIT):
            raise psycopg.OperationalError(self.cut)

    def sever(self):
        with socket.socket(fileno=os.dup(self.fileno())) as wire:
            wire.shutdown(socket.SHUT_RDWR)


class Cut:
    """The cut planned for one request, if any."""

    def __init__(self, wire, what, after):
        self.wire, self.done, self.step = wire, False, None
        wire.cut, wire.cut_after = what, after
        self.timer = threading.Timer(after, self.sever) if what == CUT else None

    def sever(self):
        self.done, self.step = True, self.wire.step
        self.wire.sever()

    def __enter__(self):
        if self.timer:
            self.timer.start()
        return self

    def __exit__(self, *exc):
        if self.timer:
            self.timer.cancel()
            self.timer.join()


class Client:
    """One of the clients; place_order is the application that it talks to."""

    def __init__(self, plan, number, seed, place_order, level):
        self.plan, self.place_order, self.level = plan, place_order, level
        self.rng = random.Random(f"{seed}/{number}")
        self.wire, self.tries = None, []

    def work_off(self, tickets):
        """Take the next send until there is none."""
        while (ticket := take(tickets)) < len(self.plan.sends):
            self.deliver(self.plan.sends[ticket])
        if self.wire:
            self.wire.close()
        return self.tries

    def deliver(self, send):
        """Send until there is an answer that says how the order ended."""
        cuts, give_up = list(send.cuts), time.monotonic() + PATIENCE
        while time.monotonic() < give_up:
            one = self.try_once(send, *(cuts.pop(0) if cuts else (None, 0)))
            self.tries.append(one)
            if one.outcome not in (LOST, "in_progress"):
                return
            time.sleep(self.rng.uniform(0.002, 0.02))
        raise RuntimeError(f"no final answer in {PATIENCE} s: {send}")

    def try_once(self, send, what, after):
        self.connect()
        self.wire.step = 0
        order = self.plan.orders[send.order]
        try:
            with Cut(self.wire, what, after) as cut:
                answer = self.place_order(self.wire, order.customer, order.key,
                                          order.carts[send.cart], send.wait)
            lost = CUT if cut.done else None
        except psycopg.OperationalError as error:
            if error.sqlstate not in (None, *GOING_DOWN):
                raise           # an error of the database's, not of the line's
            lost = cause_of(error, cut)
        if lost:
            self.wire.close()
            step = cut.step if cut.done else self.wire.step
            return Try(send.order, send.cart, LOST, None, lost, step, time.time())
        return Try(send.order, send.cart, answer.outcome, answer[1:], None, None, time.time())

    def connect(self):
        """A connection that was not lost yet; the server may be recovering."""
        if self.wire and not self.wire.closed:
            return
        give_up = time.monotonic() + PATIENCE
        while True:
            try:
                self.wire = Wire.connect(user="shop", cursor_factory=SlowCursor)
                break
            except psycopg.OperationalError:
                if time.monotonic() > give_up:
                    raise
                time.sleep(0.05)
        self.wire.rng = self.rng
        self.wire.isolation_level = self.level


def cause_of(error, cut):
    if cut.done:
        return CUT
    return str(error) if str(error) in (CUT_AT_COMMIT, CUT_AFTER_COMMIT) else BY_SERVER


def take(tickets):
    with tickets.get_lock():
        tickets.value += 1
        return tickets.value - 1


def run(client, tickets, results):
    """Body of a client's process."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    try:
        results.put((client.work_off(tickets), None))
    except Exception:
        results.put((client.tries, traceback.format_exc()))
