#!/usr/bin/python3
"""Every order of the steps of three actors, at each isolation level.

Three sessions work on one key: they claim, finish, roll back, commit, sweep,
take over, release, forget.  A scene says what the record is like before, and
what each actor does, step by step; a permutation is one order in which all
steps are given to the server.  No text is expected.  oracle.py says what every
answer may be, who must block, and what is left in the end; and apart from it

- a replay is an answer that was recorded together with its effect,
- no two effects belong to the same life of the key,
- no two grants have the same token,
- errors are only ID001 and ID002: above all no 40001, at any level,
- no lock is left.

By default a sample of all permutations is run, the same number of each scene
at each level; TEST_LONG=yes runs them all.  A permutation that fails is shown
with all that was answered.
"""

import collections
import itertools
import os
import random
import select
import sys
import time
from pathlib import Path

import psycopg
from psycopg import pq

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "stress"))

from lib import tap                                         # noqa: E402
from lib.crowd import PATIENCE, error_of, rows_of           # noqa: E402
from oracle import FAR, NOW, SETTLED, World, step           # noqa: E402
from scenes import LEVELS, SCENES                           # noqa: E402

SAMPLE = 2400
ALL = os.environ.get("TEST_LONG") == "yes"

SETUP = "CREATE TABLE effect (key text NOT NULL, response text NOT NULL)"

_LENGTH = {None: "NULL", "day": "'1 day'", "moment": "'1 microsecond'"}

_BLOCKED = "SELECT pid FROM unnest(%s::int[]) pid WHERE cardinality(pg_blocking_pids(pid)) > 0"

_LEFT = "SELECT count(*) FROM pg_locks WHERE pid = ANY (%s)"

_RECORD = """
    SELECT state, attempt, token::text, response_body, on_abandon,
           lease_expires_at > clock_timestamp(), expires_at > clock_timestamp()
    FROM idem_record WHERE key = %s"""


def interleavings(counts):
    """Every order of counts[0] zeros, counts[1] ones and so on."""
    if not any(counts):
        yield ()
    for i, n in enumerate(counts):
        if n:
            rest = counts[:i] + (n - 1,) + counts[i + 1:]
            for tail in interleavings(rest):
                yield (i,) + tail


class Fault(Exception):
    """What the permutation shows to be wrong."""


class Actor:
    """One session, its script, and what it knows."""

    def __init__(self):
        self.session = pq.PGconn.connect(b"")
        if self.session.status != pq.ConnStatus.OK:
            raise psycopg.OperationalError(self.session.error_message.decode())
        self.session.exec_(b"SET client_min_messages = error")
        self.session.nonblocking = 1
        self.pid = self.session.backend_pid

    def start(self, key, level, script, token):
        self.key, self.level, self.script = key, level, list(script)
        self.token, self.granted = token, token is not None
        self.open, self.broken, self.call, self.results = False, False, None, []

    def next_call(self):
        """The next step as the oracle knows it, or None if there is nothing to do."""
        name, args = self.script.pop(0)
        if name in ("finish", "extend") and (not self.granted or self.broken):
            return None                 # a client that was not told "claimed" does not go on
        if name in ("commit", "rollback") and not self.open:
            return None
        if self.broken and name not in ("commit", "rollback"):
            return None
        return name, args

    def send(self, call):
        self.call, self.results = call, []
        self.session.send_query(self._text(*call).encode())
        while self.session.flush():
            time.sleep(0)

    def _text(self, name, args):
        if name in ("commit", "rollback"):
            self.open = self.broken = False
            return name
        text = ""
        if not self.open:
            text = f"BEGIN ISOLATION LEVEL {self.level}; SELECT 1; "
        self.open = True
        return text + getattr(self, "_" + name)(**args)

    def _begin(self):
        return "SELECT 'begun'"

    def _claim(self, request, lease, ttl, on_abandon):
        return f"""SELECT outcome, attempt, response_body, token FROM idem_claim('permute',
            '{self.key}', request => '{request}', ttl => {_LENGTH[ttl]},
            lease => {_LENGTH[lease]}, wait => '0', on_abandon => '{on_abandon}')"""

    def _takeover(self, lease):
        return f"""SELECT outcome, attempt, response_body, token FROM idem_takeover('permute',
            '{self.key}', lease => {_LENGTH[lease]}, wait => '0')"""

    def _resolve(self, response):
        return f"""SELECT outcome, attempt, response_body FROM idem_resolve('permute',
            '{self.key}', state => 'succeeded', response_body => '{response}')"""

    def _lookup(self):
        return f"""SELECT outcome, attempt, response_body
            FROM idem_lookup('permute', '{self.key}')"""

    def _finish(self, state, response, ttl):
        body = f"'{response}'" if state in SETTLED else "NULL"
        text = f"""SELECT idem_finish('permute', '{self.key}', token => '{self.token}',
            state => '{state}', response_body => {body}, ttl => {_LENGTH[ttl]})"""
        if state == "succeeded":
            # only if recorded now: a retried finish must not insert again
            text = f"""INSERT INTO effect SELECT '{self.key}', {body} FROM ({text}) f (recorded)
                WHERE recorded RETURNING true"""
        return text

    def _extend(self, lease):
        return f"""SELECT 'held' FROM idem_extend('permute', '{self.key}',
            token => '{self.token}', lease => {_LENGTH[lease]})"""

    def _forget(self):
        return f"SELECT idem_forget('permute', '{self.key}')"

    def _sweep(self):
        return "SELECT deleted FROM idem_sweep()"

    def read(self):
        """True once the answer is complete."""
        self.session.consume_input()
        while not self.session.is_busy():
            result = self.session.get_result()
            if result is None:
                return True
            self.results.append(result)
        return False

    def answer(self):
        """What it was told, as (what, attempt, response)."""
        name, _ = self.call
        self.call = None
        for result in self.results:
            if error_of(result):
                self.broken = name not in ("commit", "rollback")
                return error_of(result), None, None
        rows = rows_of(self.results[-1])
        if name in ("commit", "rollback"):
            return "ended", None, None
        row = (rows[0] if rows else ["f"]) + [None] * 4
        if row[0] == "claimed":
            self.token, self.granted = row[3], True
        what = {"t": True, "f": False}.get(row[0], int(row[0]) if name == "sweep" else row[0])
        return what, int(row[1]) if row[1] else None, row[2]


def fits(told, seen):
    """Does an answer say what the oracle expects?"""
    what, attempt, response = seen
    if what != told.what:
        return False
    if what in ("claimed", "replayed"):
        return (attempt, response) == (told.attempt, told.response)
    return told.attempt is None or attempt == told.attempt


class Stage:
    """Three actors, and the session that sets the scene and looks at the end."""

    def __init__(self):
        self.db = psycopg.connect("", autocommit=True)
        self.db.execute(SETUP)
        self.actors = [Actor() for _ in range(3)]
        self.pids = [actor.pid for actor in self.actors]
        self.played = 0

    def play(self, scene, level, order):
        """Run one permutation.  Raises Fault."""
        self.played += 1
        self.key = f"k{self.played}"
        self.log = []
        self.worlds = [self._prepare(scene, level)]
        waiting = set()
        order = list(order)
        while order:
            # the next step of somebody who is not blocked; there is one, or all would be
            place = next(i for i, n in enumerate(order) if n not in waiting)
            n = order.pop(place)
            call = self.actors[n].next_call()
            if call:
                self.actors[n].send(call)
                self.worlds = [after for world in self.worlds for after in step(world, n, call)]
                self._await(n, call)
                waiting = {i for i, actor in enumerate(self.actors) if actor.call}
        self._check_end()

    def _prepare(self, scene, level):
        world, tokens = scene.before(self.db, self.key)
        for n, (actor, script) in enumerate(zip(self.actors, scene.scripts)):
            owner = n == scene.owner
            actor.start(self.key, level, script, tokens[-1] if owner and tokens else None)
            if owner and tokens:
                world = world.set("tokens", n, len(tokens) - 1)
        self.drawn = list(tokens)
        return world

    def _await(self, n, call):
        """Read answers until they, and who is blocked, are what some world expects."""
        patience = time.monotonic() + PATIENCE
        seen = {}
        while True:
            busy = [actor for actor in self.actors if actor.call]
            select.select([actor.session.socket for actor in busy], [], [], 0.002)
            for i, actor in enumerate(self.actors):
                if actor.call and actor.read():
                    seen[i] = actor.answer()
                    if seen[i][0] == "claimed":
                        self.drawn.append(actor.token)
            busy = [i for i, actor in enumerate(self.actors) if actor.call]
            fitting = [world for world, answers in self.worlds
                       if set(answers) == set(seen)
                       and all(fits(answers[i], seen[i]) for i in seen)]
            if fitting and self._all_blocked(busy):
                break
            late = time.monotonic() > patience
            if late or not (busy or fitting):
                self._log(n, call, seen, busy)
                raise Fault("never answered" if late else
                            "expected " + " or ".join(str(answers) for _, answers in self.worlds))
        self._log(n, call, seen, busy)
        self.worlds = [world for i, world in enumerate(fitting) if world not in fitting[:i]]

    def _all_blocked(self, busy):
        if not busy:
            return True
        pids = [self.actors[i].pid for i in busy]
        return len(self.db.execute(_BLOCKED, [pids]).fetchall()) == len(pids)

    def _log(self, n, call, seen, busy):
        self.log.append(f"{n}: {call[0]} {call[1]} -> {seen}"
                        + (f", blocked: {busy}" if busy else ""))

    def _check_end(self):
        self._check_record()
        effects = [row[0] for row in self.db.execute(
            "SELECT response FROM effect WHERE key = %s ORDER BY response", [self.key])]
        if not any(sorted(r for _, r in world.effects) == effects for world in self.worlds):
            raise Fault(f"effects {effects}, not those of {self.worlds}")
        for world in self.worlds:
            lives = [life for life, _ in world.effects]
            if len(set(lives)) < len(lives):
                raise Fault(f"two effects in one life: {world.effects}")
        if len(set(self.drawn)) < len(self.drawn):
            raise Fault(f"a token was granted twice: {self.drawn}")
        if self.db.execute(_LEFT, [self.pids]).fetchone()[0]:
            raise Fault("locks are left")
        self.db.execute("DELETE FROM idem_record")
        self.db.execute("TRUNCATE effect" if self.played % 500 == 0 else "SELECT")

    def _check_record(self):
        row = self.db.execute(_RECORD, [self.key]).fetchone()
        if not any(self._is(world.record, row) for world in self.worlds):
            raise Fault(f"the record is {row}, not that of {self.worlds}")

    def _is(self, record, row):
        if record is None or row is None:
            return record is None and row is None
        token = self.drawn[record.token] if record.token is not None else row[2]
        lease = record.lease_expires_at
        return row == (record.state, record.attempt, token, record.response, record.on_abandon,
                       None if lease is None else lease == FAR, record.expires_at > NOW)

    def clear(self):
        """After a fault: nothing of it in the next permutation."""
        for actor in self.actors:
            actor.session.get_cancel().cancel()
        for actor in self.actors:
            while actor.call and not actor.read():
                time.sleep(0.001)
            actor.session.exec_(b"ROLLBACK")
        self.db.execute("DELETE FROM idem_record")


def chosen(rng):
    """(scene, level, order): all of them, or as many of each scene and level."""
    shares = len(SCENES) * len(LEVELS)
    for scene in SCENES:
        orders = list(interleavings(tuple(len(script) for script in scene.scripts)))
        for level in LEVELS:
            some = orders if ALL else rng.sample(
                orders, min(len(orders), -(-tap.scaled(SAMPLE) // shares)))
            for order in some:
                yield scene, level, order


def main():
    tap.begin()
    stage = Stage()
    played = collections.Counter()
    distinct = set()
    faults = collections.defaultdict(list)
    for scene, level, order in chosen(random.Random(tap.SEED)):
        played[level] += 1
        distinct.add((scene.name, level, order))
        try:
            stage.play(scene, level, order)
        except Fault as fault:
            faults[scene.name, level] += [f"order {order}: {fault}", *stage.log]
            stage.clear()
    for scene, level in itertools.product(SCENES, LEVELS):
        tap.none(faults[scene.name, level], f"{scene.name}, {level.lower()}")
    for level in LEVELS:
        tap.note(f"{level.lower()}: {played[level]} permutations")
    total = sum(played.values())
    tap.ok(len(distinct) == total, f"{total} distinct permutations were run")
    tap.finish()


if __name__ == "__main__":
    main()
