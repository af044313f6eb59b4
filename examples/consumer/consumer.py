#!/usr/bin/python3
"""A RabbitMQ consumer whose messages each take effect once.

Read ship().  The queue delivers at least once: after a crash, a lost connection
or a refusal it delivers again, and a publisher that heard no confirmation
publishes again.  So, for one message or for a batch of them:

    BEGIN
      mark the messages    which of them are new?  The others were dealt with before.
      effects of the new
    COMMIT                 marks and effects, or neither
    acknowledge            not before: what is not acknowledged comes again

Killed before COMMIT, it leaves nothing, and the next delivery does the work.
Killed after it, the next delivery finds the mark.

A message is known by its message_id, which the publisher gives it once and
repeats with every copy.  (A delivery tag names the delivery, not the message.)
"""

import argparse
import contextlib
import json
import os
import random
import signal
from typing import NamedTuple

import pika
import psycopg

QUEUE = "shipping"

MARK = "SELECT idem_once_batch('shipping', %s)"
MARK_ONE = "SELECT idem_once('shipping', %s)"

# In order of sku, so that two consumers cannot deadlock over its rows.
EFFECTS = """
    WITH parcel AS (
        INSERT INTO parcels
        SELECT message, sku, qty FROM jsonb_to_recordset(%s) AS t (message text, sku text, qty int)
        RETURNING sku, qty)
    INSERT INTO shipped SELECT sku, sum(qty) FROM parcel GROUP BY sku ORDER BY sku
    ON CONFLICT (sku) DO UPDATE SET qty = shipped.qty + excluded.qty"""


class Delivery(NamedTuple):
    tag: int
    message: str
    again: bool  # the broker knows that it has delivered this one before
    order: dict


class Malformed(Exception):
    """No later delivery of the message will be any better."""


def parse(message, body):
    """The order in a message.  Whatever the database would choke on is found
    here, or it would come back for ever, with the batch that it is in."""
    try:
        order = json.loads(body)
        sku, qty = order["sku"], order["qty"]
        sku.encode()  # not the half of a character
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
        raise Malformed(error) from None
    if not message or "\0" in sku or type(qty) is not int or not 0 < qty < 2**31:
        raise Malformed("no message_id, sku or qty")
    return {"message": message, "sku": sku, "qty": qty}


class Consumer:
    """fate decides where it is struck; an honest one has none."""

    def __init__(self, db, channel, batch, fate, autocommit=False):
        self.db, self.channel, self.batch, self.fate = db, channel, batch, fate
        self.ending = False
        self.transaction = contextlib.nullcontext if autocommit else db.transaction

    def run(self):
        waiting = []
        self.channel.basic_qos(prefetch_count=2 * self.batch)
        for method, properties, body in self.channel.consume(QUEUE, inactivity_timeout=0.1):
            if method:
                waiting += self.receive(method, properties.message_id, body)
            if waiting and (len(waiting) == self.batch or not method):
                self.take(waiting)
                waiting = []
            if self.ending:
                return  # what else was delivered goes back to the queue

    def receive(self, method, message, body):
        """The delivery; none if there is no point in it, which goes to the queue's
        dead-letter exchange."""
        try:
            order = parse(message, body)
        except Malformed:
            log("rejected", message or "")
            self.channel.basic_reject(method.delivery_tag, requeue=False)
            return []
        return [Delivery(method.delivery_tag, message, method.redelivered, order)]

    def take(self, deliveries):
        last = deliveries[-1].tag
        for delivery in deliveries:
            log("delivered again" if delivery.again else "delivered", delivery.message)
        try:
            new = self.ship(deliveries)
        except psycopg.Error:
            # All has rolled back, marks included: let them come again.  If it was COMMIT's
            # answer that got lost, they find the marks.
            for delivery in deliveries:
                log("sent back", delivery.message)
            self.channel.basic_nack(last, multiple=True, requeue=True)
            if self.db.closed:
                raise  # whoever started us does so again, with a new connection
            return
        self.fate.strikes("between COMMIT and acknowledgement")
        self.channel.basic_ack(last, multiple=True)
        self.fate.strikes("after the acknowledgement")
        for _ in range(len(deliveries) - len(new)):
            log("refused as a duplicate")

    def ship(self, deliveries):
        """All of them, or none; returns the messages that were new."""
        with self.transaction():
            new = self.mark([delivery.message for delivery in deliveries])
            self.fate.strikes("between mark and effects")
            orders = {delivery.message: delivery.order for delivery in deliveries}
            self.db.execute(EFFECTS, (json.dumps([orders[message] for message in new]),))
            self.fate.troubles(self.db, deliveries)
            self.fate.strikes("before COMMIT")
        return new

    def mark(self, messages):
        """Those that are new, each once.  Waits for another consumer's uncommitted
        mark of the same message, and then answers by how that ended."""
        if self.batch == 1:
            return messages if self.db.execute(MARK_ONE, messages).fetchone()[0] else []
        return [message for message, in self.db.execute(MARK, (messages,))]


class Fate:
    """Strikes at one point, once so many deliveries have come by; and now and
    then lets a fresh delivery meet a deadlock."""

    def __init__(self, point=None, countdown=0, trouble=0.0, seed=0):
        self.point, self.countdown, self.trouble = point, countdown, trouble
        self.luck = random.Random(seed)

    def strikes(self, point):
        if point == self.point:
            self.countdown -= 1
            if self.countdown <= 0:
                log("killed", point)
                os.kill(os.getpid(), signal.SIGKILL)

    def troubles(self, db, deliveries):
        if not any(delivery.again for delivery in deliveries) and self.luck.random() < self.trouble:
            db.execute("DO $$ BEGIN RAISE deadlock_detected; END $$")


def log(what, which=""):
    """Unbuffered: nothing that was said is lost with the process."""
    os.write(1, f"{what}|{which}\n".encode())


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--port", type=int, default=5672, help="the broker's")
    options.add_argument("--batch", type=int, default=1, help="messages per transaction")
    options.add_argument("--autocommit", action="store_true", help="the trap: see the README")
    options.add_argument("--point", help="where to kill itself ...")
    options.add_argument("--countdown", type=int, default=0, help="... the how manieth time")
    options.add_argument("--trouble", type=float, default=0, help="share of work that fails")
    options.add_argument("--seed", default="0")
    arg = options.parse_args()

    broker = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", arg.port))
    db = psycopg.connect("", autocommit=True)
    consumer = Consumer(db, broker.channel(), arg.batch,
                        Fate(arg.point, arg.countdown, arg.trouble, arg.seed), arg.autocommit)
    signal.signal(signal.SIGTERM, lambda *_: setattr(consumer, "ending", True))
    consumer.run()


if __name__ == "__main__":
    main()
