"""A primary, its standby, and the promotion that loses or keeps what was acknowledged.

Before the primary is killed, replication is cut and clients go on until it is
certain that something is at stake: under asynchronous replication commits that
were acknowledged and that the standby has not got; under remote_apply commits
that wait for it, some of which are cancelled, which commits them without it.
A client whose wait was cancelled knows no more than that.
"""

import random

import psycopg

from .crew import CLIENTS
from .server import PATIENCE, Node, point

WAITING = """SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'
    AND backend_type = 'client backend'"""


class Pair:
    """current: the link that clients follow."""

    def __init__(self, directory, name, current, synchronous, seed):
        self.directory, self.name, self.current = directory, name, current
        self.synchronous = synchronous
        self.rng = random.Random(f"{seed}/{name}")
        self.members = 0
        self.primary, self.standby = self.node(), None
        self.waits_cancelled = 0

    def node(self):
        self.members += 1
        return Node(f"{self.directory}/{self.name}{self.members}")

    def begin(self, setup):
        self.primary.init()
        self.primary.start()
        self.primary.ask(setup)
        point(self.current, self.primary.sockets)

    def complete(self):
        """Give the primary a standby, if it has none."""
        if self.standby is not None:
            return
        self.standby = self.node()
        self.standby.copy_of(self.primary)
        self.standby.start()
        if self.synchronous:
            self.primary.configure("synchronous_standby_names = '*'\n"
                                   "synchronous_commit = remote_apply")
            self.primary.ask("SELECT pg_reload_conf()")

    def is_streaming(self):
        state = "sync" if self.synchronous else "async"
        return self.primary.told("SELECT count(*) FROM pg_stat_replication "
                                 "WHERE state = 'streaming' AND sync_state = %s", state)

    def cut_replication(self, crew):
        self.standby.configure("primary_conninfo = ''")
        self.standby.ask("SELECT pg_reload_conf()")
        crew.until(lambda: self.primary.told("SELECT count(*) FROM pg_stat_replication") == 0,
                   "replication is cut")

    def stake(self, crew):
        """Have something at stake."""
        if self.synchronous:
            for _ in range(self.rng.randrange(1, 4)):
                crew.until(lambda: self.cancel_wait(crew), "a commit whose wait is cancelled")
        else:
            # beyond what was committed before the cut and is acknowledged only now
            crew.advance_acknowledged(settled=CLIENTS + 5, claimed=CLIENTS + 3)

    def cancel_wait(self, crew):
        before = sum(crew.board.local)
        waiting = self.primary.ask(WAITING)
        if not waiting:
            return False
        pid = self.rng.choice(waiting)[0]
        if not self.primary.told("SELECT pg_cancel_backend(%s)", pid):
            return False
        crew.until(lambda: sum(crew.board.local) > before, "the cancelled wait ends")
        self.waits_cancelled += 1
        return True

    def promote(self):
        """Let the standby take the place of the primary, which is dead."""
        if not self.standby.told("SELECT pg_promote(true, %s)", PATIENCE):
            raise psycopg.OperationalError("not promoted")
        old, self.primary, self.standby = self.primary, self.standby, None
        point(self.current, self.primary.sockets)
        old.remove()

    def remove(self):
        for node in (self.standby, self.primary):
            if node is not None:
                node.remove()
