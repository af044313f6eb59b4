"""The faults that strike one server, its pooler and its clients.

Each is a method that makes the fault happen, sees to it that it did, and
leaves everything in working order, though not at rest: the clients are at it
all the time.  When a fault comes is counted in operations of the clients, and
what it waits for is an event, so no run depends on how fast the machine is.
"""

import os
import random
import shutil
import signal
from collections import Counter

import psycopg

from .board import Order
from .crew import CLIENTS
from .server import PORT, Stuck, run, until

CLIENT_BACKENDS = """
    SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'
        AND pid <> pg_backend_pid() AND state = ANY (%s)"""
OPEN = ["active", "idle in transaction"]

CANCEL_BUSY = """
    SELECT pg_cancel_backend(pid) FROM (SELECT pid FROM pg_stat_activity
        WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND state = 'active'
        ORDER BY random() LIMIT 1) victim"""
CANCEL_WAITING = CANCEL_BUSY.replace("state = 'active'", "wait_event_type = 'Lock'")

PANICKED = rb"(?s) PANIC: .* was terminated by signal 6"

TABLES = ("idem_record", "effect")

# Effects without a record, records without an effect, two effects.
APART = """
    SELECT count(*) FROM
        (SELECT scope, key FROM idem_record WHERE state = 'succeeded') r FULL JOIN
        (SELECT scope, key, count(*) FROM effect GROUP BY 1, 2) e USING (scope, key)
    WHERE r IS NULL OR e.count IS DISTINCT FROM 1"""

STEPS = (Order.KILL_BACKEND_AT_CLAIM, Order.KILL_BACKEND_AT_EFFECT,
         Order.KILL_BACKEND_AT_FINISH, Order.KILL_BACKEND_AT_COMMIT)

VACUUMS = ("VACUUM idem_record, effect", "VACUUM (FREEZE) idem_record, effect",
           "VACUUM (FULL) idem_record", "VACUUM (ANALYZE)")


class Striker:
    """volume: where the small file systems are mounted, or None."""

    def __init__(self, node, pooler, volume, seed):
        self.node, self.pooler, self.volume = node, pooler, volume
        self.rng = random.Random(f"{seed}/strike")
        self.crew = self.diary = None
        self.details = Counter()
        self.steps = 0

    def engage(self, crew, diary):
        """The clients of the round, and the driver's own diary for it."""
        self.crew, self.diary = crew, diary
        crew.relief = self.relieve

    def relieve(self):
        """Whoever was taken over waits where the finish of its successor is prepared."""
        try:
            self.decide_all()
        except psycopg.OperationalError:
            pass                        # the server is down just now

    # --- Processes of the server ------------------------------------------------

    def victim(self, states):
        """A server process that works for a client."""
        def found():
            try:
                pids = self.node.ask(CLIENT_BACKENDS, states)
            except psycopg.OperationalError:
                return None
            return pids and self.rng.choice(pids)[0]
        return self.crew.until(found, "a session at work")

    def kill_backend_at_random(self):
        since = self.node.log_end()

        def killed():
            pid = self.victim(OPEN)
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                return False
            return self.crashed(pid, since)
        self.crew.until(killed, "a session to kill")
        self.recovered()

    def kill_backend_at_step(self):
        since = self.node.log_end()
        self.steps += 1

        def killed():
            slot = self.ordered(STEPS[self.steps % len(STEPS)])
            return self.crashed(self.crew.board.killed[slot], since)
        self.crew.until(killed, "a session that is killed at a step")
        self.recovered()

    def crashed(self, pid, since):
        """Whether the server took it for a crash that a process of its was killed.

        Not if that was ending by itself.  It says so before it takes another
        connection, and takes none from then on until it has recovered.
        """
        self.crew.until(lambda: not os.path.exists(f"/proc/{pid}"), "a killed process is gone")
        self.node.answers()
        return self.node.logged(rb"\(PID %d\) was terminated by signal 9" % pid, since)

    def immediate_restart(self):
        self.node.stop()
        self.node.start()
        self.recovered()

    def recovered(self):
        """Clients have had answers since."""
        self.crew.until(self.node.answers, "the server recovers")
        self.crew.advance_acknowledged(3)

    def cancel(self):
        """At random, which mostly comes too late; else while a lock is waited for."""
        before = sum(self.crew.board.cancelled)

        def told(db, cancel):
            db.execute("SELECT pg_stat_clear_snapshot()")
            db.execute(cancel)
            return sum(self.crew.board.cancelled) > before
        with self.node.connect() as db:
            if any(told(db, CANCEL_BUSY) for _ in range(20)):
                self.details["cancelled at random"] += 1
                return
            self.decide_all()           # they hold locks
            with db.transaction():
                db.execute(f"LOCK TABLE {self.rng.choice(TABLES)} IN EXCLUSIVE MODE")
                self.crew.until(lambda: told(db, CANCEL_WAITING), "a client is told: cancelled")

    def terminate(self):
        def terminated():
            return self.node.told("SELECT pg_terminate_backend(%s)", self.victim(OPEN))
        self.crew.until(terminated, "a session to terminate")

    # --- Clients and the way to them ----------------------------------------------

    def ordered(self, order):
        """The client that did it."""
        slot = self.rng.randrange(CLIENTS)
        self.crew.order(slot, order)
        self.details[order.name] += 1
        return slot

    def cut_before_commit(self):
        self.ordered(self.rng.choice((Order.CUT_BEFORE_COMMIT, Order.TEAR_COMMIT)))

    def cut_after_commit(self):
        self.ordered(Order.CUT_AFTER_COMMIT)

    def cut_after_claim(self):
        self.ordered(Order.CUT_AFTER_CLAIM)

    def kill_client_at_commit(self):
        self.ordered(Order.DIE_AT_COMMIT)

    def kill_client(self):
        self.crew.kill(self.rng.randrange(CLIENTS))

    def restart_pooler(self):
        """Killed, ended at once, or once no transaction is open."""
        self.pooler.ask_to_end(self.rng.choice((signal.SIGKILL, signal.SIGQUIT, signal.SIGINT)))
        self.crew.until(self.pooler.has_ended, "the pooler ends")
        self.pooler.start()

    # --- Prepared transactions ----------------------------------------------------

    def orphan_prepared(self):
        """It stays, whatever strikes meanwhile; some are decided each time."""
        before = self.prepared()
        self.ordered(Order.PREPARE)
        still = [gid for gid in self.prepared() if gid in before]   # after a relief, perhaps none
        self.decide(self.rng.sample(still, len(still) // 2))

    def prepared(self):
        return [gid for gid, in self.node.ask("SELECT gid FROM pg_prepared_xacts ORDER BY gid")]

    def decide(self, gids):
        for gid in gids:
            action, status = self.rng.choice((("COMMIT", "ok"), ("ROLLBACK", "fail")))
            self.node.ask(f"{action} PREPARED '{gid}'")
            self.diary.resolved(gid, status)
            self.details[f"{action} PREPARED"] += 1

    def decide_all(self):
        self.decide(self.prepared())

    def settle(self):
        """When the clients have left: until nothing is open any more, of theirs or prepared."""
        def settled():
            self.decide_all()
            return self.node.at_rest()
        until(settled, "what the clients left behind ends")
        self.decide_all()

    # --- No space --------------------------------------------------------------------

    def has_room(self):
        """VACUUM FULL writes tables anew."""
        usage = self.volume and shutil.disk_usage(f"{self.volume}/space")
        return not usage or usage.used < usage.total / 3

    def fill_tablespace(self):
        """Until clients were refused, some in the middle of an extension."""
        refused = sum(self.crew.board.full)
        self.fill(f"{self.volume}/space/ballast", leave=self.rng.randrange(6) * 8192)
        self.crew.until(lambda: sum(self.crew.board.full) >= refused + 3,
                        "clients are refused for want of space")
        os.unlink(f"{self.volume}/space/ballast")
        self.crew.advance_acknowledged(3)

    def fill_wal(self):
        """Until the server panics, which it does rather than lose a record."""
        since = self.node.log_end()
        self.fill(f"{self.volume}/wal/ballast")
        self.crew.until(lambda: self.node.logged(PANICKED, since) or self.write_wal(),
                        "no space for WAL")
        os.unlink(f"{self.volume}/wal/ballast")
        self.crew.until(self.up_again, "the server recovers")
        self.recovered()

    def write_wal(self):
        """False; the caller waits for what comes of it."""
        try:
            self.node.ask("SELECT pg_logical_emit_message(false, 'chaos', repeat('x', 200000))")
        except psycopg.Error:
            pass
        return False

    def up_again(self):
        """It gives up if even the recovery finds no space; then it is started again."""
        if not self.node.is_running():
            self.node.start()
        return self.node.answers()

    @staticmethod
    def fill(path, leave=0):
        with open(path, "wb", buffering=0) as ballast:
            try:
                while True:
                    ballast.write(bytes(8192))
            except OSError:
                pass
            ballast.truncate(max(0, ballast.tell() - leave))

    # --- Work beside -----------------------------------------------------------------

    def vacuum(self):
        self.decide_all()               # VACUUM FULL would wait for them
        self.node.ask(self.rng.choice(VACUUMS))

    def reindex(self):
        self.decide_all()
        self.node.ask("REINDEX TABLE CONCURRENTLY idem_record")

    def sweep(self):
        self.node.ask("CALL idem_sweep_all()")

    def dump(self):
        """A dump is of one moment: in it, too, every effect has its record."""
        where = (f"--host={self.node.sockets}", f"--port={PORT}", "--username=postgres")
        file = f"{self.node.directory}.dump"
        run("pg_dump", *where, "--format=custom", f"--file={file}", "postgres")
        run("createdb", *where, "--template=template0", "restored")
        run("pg_restore", *where, "--no-tablespaces", "--exit-on-error", "--dbname=restored", file)
        with self.node.connect("restored") as db:
            apart = db.execute(APART).fetchone()[0]
        run("dropdb", *where, "--force", "restored")
        os.unlink(file)
        if apart:
            raise Stuck(f"{apart} keys of a dump have an effect or a record, not both")
