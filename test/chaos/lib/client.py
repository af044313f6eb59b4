"""A client: sends requests, some of them again, and keeps its diary.

It behaves as the documentation tells clients to.  What it is not told it
takes for unknown, and asks.  Now and then it rolls back, forgets a claim or
asks for what others are at; and it obeys the orders on the board, which make
its connection, its server process or itself end at a given step.

Scopes, each a way of using the extension:

    tx       claim, effect, finish, COMMIT
    execute  the same in one statement
    unknown  leased; what was abandoned is unknown until somebody has asked
    retry    leased; the provider is idempotent under the key
"""

import faulthandler
import os
import random
import signal
import time
import traceback
import uuid
from dataclasses import dataclass

from . import calls
from .board import Order
from .history import Diary
from .outside import Provider
from .server import die_with_parent
from .session import KINDS, Gone, Refused

SCOPES = ("tx", "execute", "unknown", "retry", "tx")
LEVELS = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")

THINKING = 0.02         # seconds at most between two requests, to leave some of the machine

SHORT, LONG = "150 ms", "1 hour"        # leases: one that lapses, one that does not

AT_COMMIT = frozenset((
    Order.CUT_BEFORE_COMMIT, Order.TEAR_COMMIT, Order.CUT_AFTER_COMMIT, Order.DIE_AT_COMMIT,
    Order.PREPARE, Order.KILL_BACKEND_AT_COMMIT))

NO_SPACE, CANCELLED, LOST_CLAIM = "53100", "57014", "ID001"
BAD_ARGUMENT = "22023"


def key_of(round_name, slot, number):
    return f"{round_name}-{slot}-{number}"


@dataclass(frozen=True)
class World:
    """What the clients of a round share."""
    seed: int
    name: str               # of the round
    direct: str             # socket directories
    pooled: str
    directory: str          # for diaries and the provider

    def diary(self, name):
        return f"{self.directory}/{name}.diary"

    def diaries(self):
        return self.diary(f"{self.name}-*")

    def provider(self):
        return Provider(f"{self.directory}/{self.name}.provider")


def live(world, board, slot, incarnation):
    """The life of a client process."""
    die_with_parent()
    faulthandler.register(signal.SIGUSR1)       # says where it hangs
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        Client(world, board, slot, incarnation).live()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


class Departed(Gone):
    """The client has gone for good, and tries nothing more with what it had."""


class Client:
    def __init__(self, world, board, slot, incarnation):
        self.world, self.board, self.slot = world, board, slot
        self.name = f"{world.name}-{slot}-i{incarnation}"
        self.rng = random.Random(f"{world.seed}/{self.name}")
        self.provider = world.provider()
        self.kind, self.opener, pooled = KINDS[slot % len(KINDS)]
        self.diary = Diary(world.diary(self.name), self.name, self.kind)
        self.address = world.pooled if pooled else world.direct
        self.session = None

    def live(self):
        while not self.board.leaving.value:
            scope, key = self.pick()
            try:
                self.connect()
                self.act(scope, key)
            except Gone:
                self.disconnect()
            except Refused as error:
                self.refused(scope, key, error)
            self.board.done[self.slot] += 1
            time.sleep(self.rng.random() * THINKING)
        self.disconnect()

    def connect(self):
        while self.session is None:
            try:
                self.session = self.opener(self.address)
            except Gone:
                if self.board.leaving.value:
                    raise
                time.sleep(0.01)

    def disconnect(self):
        session, self.session = self.session, None
        if session is not None:
            session.close()

    def refused(self, scope, key, error):
        """Note what the server said, and begin anew."""
        self.diary.saw(time.monotonic_ns(), scope, key, kind="refused", error=error.sqlstate)
        self.board.full[self.slot] += error.sqlstate == NO_SPACE
        self.board.cancelled[self.slot] += error.sqlstate == CANCELLED
        try:
            self.run("ROLLBACK")
        except (Gone, Refused):
            self.disconnect()

    def pick(self):
        """A new key of its own, or one that somebody brought into play lately."""
        slot = self.slot
        if self.rng.random() < 0.5:
            self.board.made[slot] += 1
            number = self.board.made[slot]
        else:
            slot = self.rng.randrange(self.board.clients)
            number = max(1, self.board.made[slot] - self.rng.randrange(8))
        return SCOPES[number % len(SCOPES)], key_of(self.world.name, slot, number)

    def act(self, scope, key):
        if self.rng.random() < 0.15:
            self.look(scope, key)
        elif scope == "tx":
            self.transact(key)
        elif scope == "execute":
            self.execute(key)
        else:
            self.lease(scope, key)

    def wait(self):
        return self.rng.choice(("0", "0", "50 ms"))

    def look(self, scope, key):
        start = time.monotonic_ns()
        answer = calls.Answer.of(self.run(calls.LOOKUP, scope, key, calls.PRINCIPAL))
        self.diary.saw(start, scope, key, **answer.seen())
        return answer

    # --- In one transaction ---------------------------------------------------

    def transact(self, key):
        scope = "tx"
        run = self.run
        run(f"BEGIN ISOLATION LEVEL {self.rng.choice(LEVELS)}")
        start = time.monotonic_ns()
        answer = calls.Answer.of(run(
            calls.CLAIM, scope, key, calls.PRINCIPAL, calls.request(key), self.wait()))
        self.diary.saw(start, scope, key, **answer.seen())
        if answer.outcome != "claimed":
            run("COMMIT")
            return
        self.maybe_kill_backend(Order.KILL_BACKEND_AT_CLAIM)
        if self.rng.random() < 0.03:
            self.forget_to_finish(scope, key)
            return
        token = self.rng.choice((answer.token, None))
        self.settle(scope, key, token, calls.Response(self.rng), answer.attempt)

    def forget_to_finish(self, scope, key):
        """Which no COMMIT and no PREPARE TRANSACTION lets pass."""
        op = self.begin("forgotten", scope, key)
        self.one_statement(op, self.rng.choice(("COMMIT", f"PREPARE TRANSACTION '{op}'")))
        self.diary.end(op, "ok")

    def execute(self, key):
        scope = "execute"
        response = calls.Response(self.rng, headed=False)
        op = self.begin("settle", scope, key, digest=response.digest())
        start = time.monotonic_ns()
        answer = calls.Answer.of(self.one_statement(
            op, calls.EXECUTE, scope, key, calls.PRINCIPAL, calls.request(key),
            response.command(scope, key, op), self.wait()))
        if answer.outcome == "executed":
            self.acknowledge(op, self.board.settled, attempt=answer.attempt)
        else:
            self.diary.end(op, "fail")
            self.diary.saw(start, scope, key, **answer.seen())

    # --- With a lease ---------------------------------------------------------

    def lease(self, scope, key):
        token = str(uuid.UUID(int=self.rng.getrandbits(128), version=4))
        token = self.rng.choice((token, None))
        lease = self.rng.choice((SHORT, LONG))
        answer = self.claim(scope, key, token, lease)
        if answer.outcome == "claimed":
            self.work(scope, key, answer, lease)
        elif answer.outcome == "unknown" and self.rng.random() < 0.5:
            self.reconcile(scope, key)

    def claim(self, scope, key, token, lease):
        """With a token of its own it may ask again when it got no answer."""
        tries, repeated = 3 if token else 1, False
        while True:
            tries -= 1
            op = self.begin("claim", scope, key, token=token)
            arguments = (scope, key, calls.PRINCIPAL, calls.request(key), self.wait(), lease,
                         scope, token)
            try:
                if self.board.standing(self.slot, (Order.CUT_AFTER_CLAIM,)):
                    self.session.send(calls.LEASED_CLAIM, *arguments)
                    self.session.cut()
                    self.board.obey(self.slot)
                    self.diary.end(op, "unknown", error="cut")
                    raise Gone
                answer = calls.Answer.of(self.one_statement(op, calls.LEASED_CLAIM, *arguments))
                if self.acknowledge(op, self.board.claimed, **answer.seen()):
                    return answer
                raise Gone
            except Refused as error:
                if repeated and error.sqlstate == BAD_ARGUMENT:
                    raise Departed from error       # the lease lapsed; the token is spent
                raise
            except Gone:
                if not tries:
                    raise
                repeated = True
                self.disconnect()
                self.connect()

    def work(self, scope, key, answer, lease):
        """Charge, and record it.  Some clients are never heard of again."""
        if self.rng.random() < 0.08:
            return
        self.maybe_kill_backend(Order.KILL_BACKEND_AT_CLAIM)
        charged, _ = self.provider.charge(self.reference(scope, key, answer.attempt), self.name)
        if not charged or self.rng.random() < 0.08:
            return
        if lease == SHORT and self.rng.random() < 0.2:
            self.linger(scope, key, answer.attempt)
        self.settle_surely(scope, key, answer)

    def linger(self, scope, key, attempt):
        """Until somebody else has taken over, or for so long that nobody will."""
        for _ in range(100):
            found = self.look(scope, key)
            if found.outcome == "replayed" or (found.attempt or attempt) > attempt:
                return
            time.sleep(0.01)

    def settle_surely(self, scope, key, answer):
        """With the same response, until there is an answer."""
        response = calls.Response(self.rng)
        for _ in range(4):
            try:
                self.connect()
                self.run(f"BEGIN ISOLATION LEVEL {self.rng.choice(LEVELS)}")
                self.settle(scope, key, answer.token, response, answer.attempt)
                return
            except Departed:
                raise
            except Gone:
                self.disconnect()
            except Refused as error:
                self.refused(scope, key, error)
                if error.sqlstate == LOST_CLAIM:
                    return

    def reconcile(self, scope, key):
        """Take over, ask the provider about every attempt there was, and say so."""
        op = self.begin("takeover", scope, key)
        answer = calls.Answer.of(self.one_statement(
            op, calls.TAKEOVER, scope, key, calls.PRINCIPAL, self.rng.choice((SHORT, LONG))))
        if not self.acknowledge(op, self.board.claimed, **answer.seen()):
            return
        if answer.outcome != "claimed":
            return
        if any([self.provider.settle(self.reference(scope, key, attempt), self.name)
                for attempt in range(1, answer.attempt)]):
            self.settle_surely(scope, key, answer)
        else:
            self.release(scope, key, answer)

    @staticmethod
    def reference(scope, key, attempt):
        return f"{key}.{attempt}" if scope == "unknown" else key

    def release(self, scope, key, answer):
        op = self.begin("release", scope, key, attempt=answer.attempt)
        self.one_statement(op, calls.RELEASE, scope, key, calls.PRINCIPAL, answer.token)
        self.acknowledge(op, self.board.released)

    # --- What all have in common ------------------------------------------------

    def run(self, sql, *params):
        rows = self.session.run(sql, *params)
        self.board.local[self.slot] += self.session.local
        return rows

    def begin(self, kind, scope, key, **data):
        return self.diary.begin(kind, scope, key, **data)

    def acknowledge(self, op, counter, **data):
        """End an operation whose commit was answered; false if only half of it is known."""
        if self.session.local:
            self.diary.end(op, "unknown", local=True)
            return False
        self.diary.end(op, "ok", **data)
        counter[self.slot] += 1
        return True

    def one_statement(self, op, sql, *params):
        """An operation that is a transaction of its own; ends it if it fails."""
        try:
            return self.run(sql, *params)
        except Gone as error:
            self.diary.end(op, "unknown", error=str(error))
            raise
        except Refused as error:
            self.refuse(op, error)
            raise

    def refuse(self, op, error):
        self.diary.end(op, "fail", error=error.sqlstate, fenced=error.sqlstate == LOST_CLAIM)

    def settle(self, scope, key, token, response, attempt):
        """In an open transaction: effect and finish, and COMMIT."""
        op = self.begin("settle", scope, key, digest=response.digest(), attempt=attempt)
        try:
            recorded = self.effect_and_finish(op, scope, key, token, response)
        except Gone as error:
            self.diary.end(op, "fail", error=str(error))
            raise
        except Refused as error:
            self.refuse(op, error)
            raise
        if not recorded:                # an earlier try was committed after all
            self.diary.end(op, "fail", already=True)
            self.run("ROLLBACK")
        elif self.rng.random() < 0.05:
            self.diary.end(op, "fail", error="rolled back")
            self.run("ROLLBACK")
        else:
            self.commit(op)

    def effect_and_finish(self, op, scope, key, token, response):
        effect = (calls.EFFECT, scope, key, op)
        finish = (calls.FINISH, scope, key, calls.PRINCIPAL, token, *response.arguments())
        if self.rng.random() < 0.5:
            self.run(*effect)
            self.maybe_kill_backend(Order.KILL_BACKEND_AT_EFFECT)
            recorded = self.run(*finish)[0][0] == "true"
        else:
            recorded = self.run(*finish)[0][0] == "true"
            if recorded:
                self.run(*effect)
                self.maybe_kill_backend(Order.KILL_BACKEND_AT_EFFECT)
        self.maybe_kill_backend(Order.KILL_BACKEND_AT_FINISH)
        return recorded

    def maybe_kill_backend(self, order):
        """As the operating system might, at just this step."""
        if self.board.standing(self.slot, (order,)):
            self.kill_backend(self.session.backend())

    def kill_backend(self, pid):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return                      # it was ended otherwise; the order stands
        self.board.killed[self.slot] = pid
        self.board.obey(self.slot)

    def commit(self, op):
        order = self.board.standing(self.slot, AT_COMMIT)
        if order in (Order.CUT_BEFORE_COMMIT, Order.TEAR_COMMIT):
            if order == Order.TEAR_COMMIT:
                self.session.send_torn("COMMIT", self.rng.randrange(1, 12))
            self.session.cut()
            self.board.obey(self.slot)
            self.diary.end(op, "fail", error="cut")
            raise Gone
        if order == Order.PREPARE:
            self.prepare(op)
        elif order:
            self.lose_answer(op, order)
        else:
            self.one_statement(op, "COMMIT")
            self.acknowledge(op, self.board.settled)

    def prepare(self, op):
        """Leave a prepared transaction behind, for the driver to decide."""
        self.one_statement(op, f"PREPARE TRANSACTION '{op}'")
        self.diary.end(op, "unknown", prepared=True)
        self.board.obey(self.slot)
        raise Departed

    def lose_answer(self, op, order):
        if order == Order.KILL_BACKEND_AT_COMMIT:
            backend = self.session.backend()
            self.session.send("COMMIT")
            self.kill_backend(backend)
        else:
            self.session.send("COMMIT")
            self.board.obey(self.slot)
        if order == Order.DIE_AT_COMMIT:
            os.kill(os.getpid(), signal.SIGKILL)
        self.session.cut()
        self.diary.end(op, "unknown", error="cut")
        raise Gone
