#!/usr/bin/python3
"""Clients of every kind at work, while faults strike; afterwards nothing is wrong.

The run is a sequence of rounds.  In each, clients (lib/client.py) work on keys
of their own making and keep diaries, faults strike (lib/strike.py,
lib/failover.py), then the clients leave and the checker (lib/verdict.py) holds
what they wrote against what the database and the provider say.

The asynchronous failovers are there to lose something: the checker must see
the loss, and must see nothing else.

    CHAOS_SEED      the seed of every random choice
    CHAOS_SCALE     multiplies the number of faults; 1 is what CI runs
    CHAOS_VOLUME    a directory of which "space" and "wal" are small file
                    systems; without it the disk does not get full
    TEST_LONG       if set, the number of faults of the long run
"""

import os
import random
import resource
import shutil
import signal
import sys
import tempfile
from collections import Counter

from lib import audit, calls, doctor, failover, tap, verdict
from lib.client import World
from lib.crew import Crew
from lib.history import Diary, read
from lib.server import Node, Pooler, point, until
from lib.session import KINDS
from lib.strike import Striker

VOLUME = os.environ.get("CHAOS_VOLUME")
LONG = bool(os.environ.get("TEST_LONG"))

# How often each strikes: in CI, in the long run.
FAULTS = {
    "kill_backend_at_random": (4, 100),
    "kill_backend_at_step": (4, 100),
    "immediate_restart": (4, 100),
    "cancel": (8, 200),
    "terminate": (8, 200),
    "cut_before_commit": (8, 100),
    "cut_after_commit": (8, 100),
    "cut_after_claim": (6, 50),
    "kill_client_at_commit": (8, 1000),
    "kill_client": (4, 50),
    "restart_pooler": (4, 60),
    "orphan_prepared": (6, 100),
    "fill_tablespace": (3, 30),
    "fill_wal": (3, 30),
    "vacuum": (3, 30),
    "reindex": (3, 30),
    "sweep": (3, 30),
    "dump": (3, 20),
}
FAILOVERS = {"asynchronous": (3, 15), "remote_apply": (3, 15)}
NEED_VOLUME = ("fill_tablespace", "fill_wal")

ROUND = 12                      # faults
SAMPLE = 200                    # keys of a round among which lies are told

# The errors that clients may be told while faults strike: cancelled, no space,
# claim lost, claim unfinished.  (An error that ends the connection is as good
# as none: the client does not know.)
EXPECTED = {"57014", "53100", "ID001", "ID002"}


ENDS = (("ok", "acknowledged"), ("fail", "known to have failed"), ("unknown", "unknown"))


def wanted(counts):
    return tap.scaled(counts[LONG])


class Run:
    def __init__(self, directory):
        self.directory = directory
        self.current = f"{directory}/current"
        self.pooler = Pooler(f"{directory}/pooler", self.current)
        self.struck = Counter()
        self.ends = Counter()                   # of operations, by status
        self.errors = Counter()
        self.acknowledged = Counter()           # settles, by kind of client
        self.operations = 0
        self.lies = list(doctor.LIES)           # that are yet to be told

    # --- A round ---------------------------------------------------------------------

    def world(self, name):
        return World(tap.SEED, name, self.current, self.pooler.directory, self.directory)

    def judge(self, world, node):
        """Once the clients have left: what is wrong, and what it was judged by."""
        ops = read(world.diaries())
        with node.connect() as db:
            finals = audit.final_state(db, world.name, world.provider(), ops)
        self.count(ops)
        return verdict.judge(ops, finals), ops, finals

    def count(self, ops):
        self.operations += len(ops)
        for op in ops:
            if op.kind == "refused":
                self.errors[op.error] += 1
            elif op.kind != "ask":
                self.ends[op.status] += 1
            if op.kind == "settle" and op.status == "ok":
                self.acknowledged[op.via] += 1

    def forget(self, world):
        for path in os.listdir(self.directory):
            if path.startswith(f"{world.name}-"):
                os.unlink(f"{self.directory}/{path}")
        shutil.rmtree(world.provider().directory)

    # --- One server --------------------------------------------------------------------

    def one_server(self):
        schedule = [name for name, counts in FAULTS.items() for _ in range(wanted(counts))
                    if VOLUME or name not in NEED_VOLUME]
        rng = random.Random(f"{tap.SEED}/schedule")
        rng.shuffle(schedule)
        node = Node(f"{self.directory}/main")
        node.init(wal=VOLUME and f"{VOLUME}/wal/pg_wal")
        node.start()
        try:
            node.ask(calls.SETUP)
            if VOLUME:
                self.use_small_tablespace(node)
            point(self.current, node.sockets)
            striker = Striker(node, self.pooler, VOLUME, tap.SEED)
            number = 0
            while schedule:
                number += 1
                self.round(f"m{number}", striker, rng, schedule)
            tap.note("in detail: " + ", ".join(
                f"{name} {n}" for name, n in sorted(striker.details.items())))
        finally:
            node.remove()

    @staticmethod
    def use_small_tablespace(node):
        node.ask(f"CREATE TABLESPACE small LOCATION '{VOLUME}/space/data'")
        for table in ("idem_record", "effect"):
            node.ask(f"ALTER TABLE {table} SET TABLESPACE small")
        for index, in node.ask("SELECT indexrelid::regclass::text FROM pg_index WHERE indrelid "
                               "IN ('idem_record'::regclass, 'effect'::regclass)"):
            node.ask(f"ALTER INDEX {index} SET TABLESPACE small")

    def round(self, name, striker, rng, schedule):
        """Takes its faults from the schedule, not so many that it fills the table space itself."""
        faults = []
        world = self.world(name)
        crew = Crew(world)
        striker.engage(crew, Diary(world.diary(f"{name}-driver"), f"{name}-driver", "driver"))
        while schedule and len(faults) < ROUND and striker.has_room():
            faults.append(schedule.pop())
            crew.advance(rng.randrange(1, 40))
            getattr(striker, faults[-1])()
            self.struck[faults[-1]] += 1
        crew.advance_acknowledged(10)
        crew.dismiss()
        self.pooler.restart()
        striker.settle()
        violations, ops, finals = self.judge(world, striker.node)
        tap.none([str(v) for v in violations],
                 f"{name}: {len(ops)} entries, {len(finals)} keys, {', '.join(faults)}")
        self.examine(ops, finals)
        striker.node.ask("TRUNCATE idem_record, effect")
        self.forget(world)

    def examine(self, ops, finals):
        """Tell the lies of checker.py, each in the first history that has a place for it.

        A part of the keys will do: the checker goes by key.
        """
        keys = set(random.Random(tap.SEED).sample(sorted(finals), min(SAMPLE, len(finals))))
        ops = [op for op in ops if (op.scope, op.key) in keys]
        finals = {key: finals[key] for key in keys}
        for lie, kind in self.lies[:]:
            try:
                found = doctor.tell(lie, ops, finals)
            except doctor.Unsuitable:
                continue
            self.lies.remove((lie, kind))
            tap.ok(kind in found, f"the checker sees through: {doctor.name_of(lie)}",
                   [f"found: {sorted(found)}"])

    # --- Failovers -----------------------------------------------------------------------

    def failovers(self, kind):
        synchronous = kind == "remote_apply"
        pair = failover.Pair(self.directory, "sync" if synchronous else "async", self.current,
                             synchronous, tap.SEED)
        pair.begin(calls.SETUP)
        try:
            for number in range(wanted(FAILOVERS[kind])):
                pair.complete()
                self.failover(f"{pair.name}{number + 1}", pair)
                self.struck[kind] += 1
        finally:
            pair.remove()

    def failover(self, name, pair):
        world = self.world(name)
        crew = Crew(world)
        crew.until(pair.is_streaming, "the standby streams")
        crew.advance_acknowledged(20, 5)
        pair.cut_replication(crew)
        pair.stake(crew)
        pair.primary.stop()
        if pair.synchronous:
            pair.promote()
            crew.advance_acknowledged(20, 5)
            crew.dismiss()
        else:
            crew.halt()                 # what is lost is looked at before it runs again
            pair.promote()
        self.pooler.restart()
        until(pair.primary.at_rest, "what the clients left behind ends")
        violations, ops, finals = self.judge(world, pair.primary)
        self.judge_failover(name, pair, violations,
                            f"{len(ops)} entries, {len(finals)} keys")
        self.forget(world)

    @staticmethod
    def judge_failover(name, pair, violations, size):
        lost = [v for v in violations if v.kind == verdict.LOST]
        other = [str(v) for v in violations if v.kind != verdict.LOST]
        if pair.synchronous:
            tap.none([str(v) for v in violations],
                     f"{name}: {size}, failover with remote_apply loses nothing")
        else:
            tap.ok(lost, f"{name}: {size}, asynchronous failover: the loss is seen")
            tap.none(other, f"{name}: and nothing but loss")
            tap.note(f"{name}: {len(lost)} violations, the first: {lost[0] if lost else None}")

    # --- In the end ------------------------------------------------------------------------

    def report(self):
        tap.note(f"{sum(self.struck.values())} faults: " + ", ".join(
            f"{name} {n}" for name, n in self.struck.items()))
        tap.note(f"{self.operations} entries in diaries; operations that change something: " +
                 ", ".join(f"{self.ends[status]} {what}" for status, what in ENDS))
        tap.note("refused: " + ", ".join(f"{name} {n}" for name, n in sorted(self.errors.items())))
        for name, counts in {**FAULTS, **FAILOVERS}.items():
            if name in NEED_VOLUME and not VOLUME:
                tap.skip(name, "only root can mount small file systems")
            else:
                tap.equal(self.struck[name], wanted(counts),
                          f"{name} struck {wanted(counts)} times")
        tap.none([doctor.name_of(lie) for lie, _ in self.lies], "every lie found its place")
        tap.none([f"{error!r}" for error in sorted(set(self.errors) - EXPECTED)],
                 "no error but those that the faults explain")
        tap.none([kind for kind, _, _ in KINDS if not self.acknowledged[kind]],
                 "every kind of client had work acknowledged")


def main():
    tap.begin()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    directory = tempfile.mkdtemp(prefix="chaos.")
    run = Run(directory)
    try:
        run.pooler.start()
        run.one_server()
        run.failovers("asynchronous")
        run.failovers("remote_apply")
    except Exception:
        show_logs(directory)
        raise
    finally:
        run.pooler.stop()
        shutil.rmtree(directory, ignore_errors=True)
    run.report()
    tap.finish()


def show_logs(directory):
    for name in sorted(os.listdir(directory)):
        if name.endswith(".log"):
            with open(f"{directory}/{name}", encoding="utf-8", errors="replace") as log:
                tap.note(f"--- {name}")
                tap.note("".join(log.readlines()[-40:]))


if __name__ == "__main__":
    main()
