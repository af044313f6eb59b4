#!/usr/bin/python3
"""5,000 messages through RabbitMQ, each delivered up to four times and more, to
consumers that are killed at random and at the worst moments; then the count.

Needs a server with the extension, and may create a database and the role
shipping_app there (PGHOST, PGPORT, PGUSER name it); rabbitmq-server, pika and
psycopg 3.  Starts a RabbitMQ node of its own.
"""

import argparse
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "lib"))

import pika  # noqa: E402

from broker import Broker  # noqa: E402
from consumer import QUEUE  # noqa: E402
from stage import Checks, Program, Stage, wait_until  # noqa: E402

BATCHES = [1, 1, 25, 25]  # four consumers, by messages per transaction
POINTS = ["between mark and effects", "before COMMIT", "between COMMIT and acknowledgement",
          "after the acknowledgement"]
KILLS_AT_A_POINT = 6      # of each
KILLS_AT_RANDOM = 12
PATIENCE = 600            # seconds after which a scenario that hangs is a failure
TRAPPED, LOST = 200, 5    # messages of the autocommit round, and kills in it
MALFORMED = [(None, b'{"sku": "sku-1", "qty": 1}'), ("x-1", b"{"), ("x-2", b"[" * 10**5),
             ("x-3", b"[]"), ("x-4", b'{"sku": "sku-1"}'), ("x-5", b'{"sku": 1, "qty": 1}'),
             ("x-6", b'{"sku": "\\u0000", "qty": 1}'), ("x-7", b'{"sku": "\\ud800", "qty": 1}'),
             ("x-8", b'{"sku": "sku-1", "qty": "1"}'), ("x-9", b'{"sku": "sku-1", "qty": 1e0}'),
             ("x-10", b'{"sku": "sku-1", "qty": 2147483648}'), ("x-11", b"\xff")]


class Queue:
    """The publisher's connection, and what it can see of the queue."""

    def __init__(self, port):
        # it is silent for as long as the scenario has no question
        wire = pika.BlockingConnection(
            pika.ConnectionParameters("127.0.0.1", port, heartbeat=0))
        self.channel = wire.channel()
        self.channel.queue_declare(QUEUE, durable=True)

    def publish(self, copies):
        for message, order in copies:
            self.put(message, json.dumps({**order, "message": "what the body calls itself"}))

    def put(self, message, body):
        self.channel.basic_publish("", QUEUE, body, pika.BasicProperties(message_id=message))

    def look(self):
        """How many messages are ready, and how many consumers are connected."""
        seen = self.channel.queue_declare(QUEUE, passive=True).method
        return seen.message_count, seen.consumer_count


class Story:
    def __init__(self, stage, seed, number):
        self.stage, self.seed, self.number = stage, seed, number
        self.luck, self.incarnations = random.Random(seed), 0
        self.killed = Counter()
        self.broker = Broker(stage)
        self.broker.start()
        self.queue = Queue(self.broker.port)

    def play(self):
        """Publish all, several times over, and consume under fire until none is left."""
        self.orders = self.invent("m", self.number)
        copies = [item for item in self.orders.items()
                  for _ in range(self.luck.choices([1, 2, 3, 4], [50, 30, 15, 5])[0])]
        self.luck.shuffle(copies)
        self.published = len(copies)
        for message, body in MALFORMED:
            self.queue.put(message, body)
        self.queue.publish(copies)

        crew = [self.consumer(f"consumer-{n}") for n in range(len(BATCHES))]
        doom = POINTS * KILLS_AT_A_POINT
        self.luck.shuffle(doom)
        deadline = time.monotonic() + PATIENCE
        while doom or self.killed["at random"] < KILLS_AT_RANDOM or not self.drained(crew):
            if time.monotonic() > deadline:
                raise RuntimeError(f"after {PATIENCE} s there is no end in sight")
            for program, batch in zip(crew, BATCHES, strict=True):
                if not program.running():
                    program.point = doom.pop() if doom else "never"
                    self.begin(program, batch, "--trouble", 0.02, "--point", program.point,
                               "--countdown", 1 + self.luck.randrange(60) // batch)
            time.sleep(self.luck.uniform(0.05, 0.15))
            if self.killed["at random"] < KILLS_AT_RANDOM:
                victim = self.luck.choice(crew)
                victim.kill()
                self.killed["at random"] += 1
                doom.append(victim.point)  # another one will have to meet its end there

    def fall_into_the_trap(self):
        """The same consumer in autocommit, killed between mark and effects."""
        self.trapped = self.invent("t", TRAPPED)
        self.queue.publish(self.trapped.items())
        program = self.consumer("trapped")
        for _ in range(LOST):
            self.begin(program, 1, "--autocommit", "--point", POINTS[0], "--countdown", 10)
            # not before the queue has back what was not acknowledged: it is next, and
            # must not be what the following strike hits
            wait_until(lambda: not program.running() and self.queue.look()[1] == 0)
        self.run_dry(program, "--autocommit")

    def lose_the_connection(self):
        """The database ends it in the middle of the work; returns the consumer."""
        self.queue.publish(self.invent("c", 1).items())
        program = self.consumer("disconnected")
        with self.stage.connect(autocommit=False) as conn:
            conn.execute("LOCK TABLE parcels IN SHARE MODE")
            self.begin(program, 1)
            wait_until(lambda: self.stage.rows(
                "SELECT pg_terminate_backend(pid) FROM pg_locks"
                " WHERE relation = 'parcels'::regclass AND NOT granted"))
            wait_until(lambda: not program.running() and self.queue.look()[1] == 0)
        self.run_dry(self.consumer("reconnected"))
        return program

    def run_dry(self, program, *options):
        """Until nothing is ready, nor comes back when the consumer has ended.  It is
        not killed: in autocommit that might lose one more."""
        while True:
            self.begin(program, 1, *options)
            wait_until(lambda: self.queue.look()[0] == 0)
            program.end()
            wait_until(lambda: self.queue.look()[1] == 0)
            if self.queue.look()[0] == 0:
                return

    def invent(self, prefix, number):
        return {f"{prefix}-{n}": {"sku": f"sku-{self.luck.randrange(20)}",
                                  "qty": self.luck.randint(1, 9)} for n in range(number)}

    def consumer(self, name):
        return Program(self.stage, name, [], {"PGUSER": "shipping_app"})

    def begin(self, program, batch, *fate):
        if program.running():
            return
        if program.child and program.child.returncode not in (0, -signal.SIGKILL):
            raise RuntimeError(f"{program.name} has ended:\n{program.log.read_text()[-2000:]}")
        self.incarnations += 1
        argv = ["/usr/bin/python3", HERE / "consumer.py", "--port", self.broker.port,
                "--batch", batch, "--seed", f"{self.seed}-{self.incarnations}", *fate]
        program.argv = [str(arg) for arg in argv]
        program.start()

    def drained(self, crew):
        """Nothing ready, and nothing comes back when the consumers are gone: once
        the queue has none of them, it has what they had not acknowledged."""
        if self.queue.look()[0]:
            return False
        for program in crew:
            program.kill()
        wait_until(lambda: self.queue.look()[1] == 0)
        return self.queue.look()[0] == 0

    def told(self):
        """(what, which) of everything that the consumers said."""
        return [line.split("|", 1) for log in self.stage.directory.glob("consumer-*.log")
                for line in log.read_text().splitlines()]


def judge(check, story):
    told = story.told()
    odd = [line for line in told if len(line) != 2]
    said = Counter(what for what, *_ in told)
    killed = story.killed + Counter(which for what, which in told if what == "killed")
    deliveries = Counter(which for what, which in told if what.startswith("delivered"))
    effects = story.stage.rows("SELECT message, sku, qty FROM parcels ORDER BY 1")
    wanted = sorted((message, *order.values()) for message, order in story.orders.items())
    tell(check, story, said, killed, deliveries, effects)

    check.that(not odd, "no consumer met an error that it did not expect", odd[-20:])
    check.that(set(deliveries) == set(story.orders) and max(deliveries.values()) >= 4,
               f"all of {story.number} messages were delivered, some four times or more")
    for point in [*POINTS, "at random"]:
        check.that(killed[point] > 0, f"consumers were killed {point}")
    for what in ("delivered again", "sent back", "refused as a duplicate"):
        check.that(said[what] > 0, f"messages were {what}")
    check.same({which for what, which in told if what == "rejected"},
               {message or "" for message, _ in MALFORMED},
               "malformed messages were rejected, and held up no other")
    twice = [message for message, number in Counter(row[0] for row in effects).items()
             if number > 1]
    check.that(not twice, "no message took effect twice", twice[:20])
    check.that(not set(story.orders) - {row[0] for row in effects}, "none was lost",
               sorted(set(story.orders) - {row[0] for row in effects})[:20])
    check.that(sorted(effects) == wanted, f"effects = messages = {story.number}")
    tally = Counter()
    for order in story.orders.values():
        tally[order["sku"]] += order["qty"]
    check.same(dict(story.stage.rows("SELECT sku, qty::int FROM shipped")), dict(tally),
               "and the tally of what was shipped agrees")
    check.same(story.stage.value("SELECT count(*) FROM idem_record WHERE scope = 'shipping'"),
               story.number, "one mark per message")


def judge_trap(check, story):
    shipped = story.stage.value("SELECT count(*) FROM parcels WHERE message LIKE 't-%'")
    check.same(shipped, TRAPPED - LOST,
               f"the trap: in autocommit {LOST} kills between mark and effects lose {LOST}")


def judge_connection(check, story, program):
    check.that("sent back|c-0" in program.log.read_text() and program.child.returncode == 1,
               "a consumer whose connection is lost sends its work back, and ends")
    check.same(story.stage.value("SELECT count(*) FROM parcels WHERE message = 'c-0'"), 1,
               "the next one does that work, once")


def tell(check, story, said, killed, deliveries, effects):
    def line(number, what):
        check.say(f"  {number:6}  {what}")

    check.say()
    line(story.number, "messages")
    line(story.published, "published: a publisher in doubt sends again")
    line(sum(deliveries.values()), "deliveries")
    line(said["delivered again"], "of them again, after a kill or a refusal")
    line(said["sent back"], "sent back by a consumer in trouble")
    line(said["refused as a duplicate"], "refused as duplicates")
    for point, number in sorted(killed.items()):
        line(number, f"kills {point}")
    line(len(effects), "effects")
    check.say("  times delivered: " + ", ".join(
        f"{times}: {number}" for times, number in sorted(Counter(deliveries.values()).items())))
    check.say()


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--seed", type=int,
                         default=int(os.environ.get("CONSUMER_SEED") or random.randrange(10**6)))
    options.add_argument("--messages", type=int, default=5000)
    options.add_argument("--tap", action="store_true", help="print TAP")
    options.add_argument("--keep", action="store_true", help="keep the database and the logs")
    arg = options.parse_args()
    if arg.messages < 1000:
        options.error("at least 1000 messages, or there is not enough to kill for")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))

    check = Checks(arg.tap)
    check.say(f"seed {arg.seed}")
    stage = Stage("consumer")
    try:
        with stage.connect() as conn:
            conn.execute("CREATE EXTENSION idempotency")
            conn.execute((HERE / "schema.sql").read_text())
        story = Story(stage, arg.seed, arg.messages)
        story.play()
        judge(check, story)
        story.fall_into_the_trap()
        judge_trap(check, story)
        judge_connection(check, story, story.lose_the_connection())
    finally:
        stage.clear(arg.keep)
    sys.exit(0 if check.close() else 1)


if __name__ == "__main__":
    main()
