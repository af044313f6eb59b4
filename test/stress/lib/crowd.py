"""Many sessions in one process, and a gate that lets them go at once.

The sessions are plain libpq connections that are sent their statements without
waiting for an answer, so a single client process keeps all of them busy.  What
makes them meet is in the server: each runs GATE first, which waits for an
advisory lock that the gatekeeper holds.  When that is released, every session
becomes runnable at the same instant, its statements already in its hands.
"""

import selectors
import time

import psycopg
from psycopg import pq

GATE = "SELECT pg_advisory_xact_lock_shared(7071)"

PATIENCE = 120          # seconds until a session that does not answer is a failure

_WAITING = """
    SELECT count(*) FROM pg_locks
    WHERE locktype = 'advisory' AND objid = 7071 AND NOT granted
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"""


class Stuck(Exception):
    """A session gave no answer."""


def error_of(result):
    """SQLSTATE of a result, or None if it is not an error."""
    if result.status != pq.ExecStatus.FATAL_ERROR:
        return None
    state = result.error_field(pq.DiagnosticField.SQLSTATE)
    return state.decode() if state else "connection lost"


def rows_of(result):
    """The rows of a result as lists of text or None."""
    return [[None if value is None else value.decode()
             for value in (result.get_value(row, column) for column in range(result.nfields))]
            for row in range(result.ntuples)]


class Crowd:
    """n sessions and their gatekeeper."""

    def __init__(self, n, setup="SET client_min_messages = error"):
        self.gatekeeper = psycopg.connect("", autocommit=True)
        self.sessions = [pq.PGconn.connect(b"") for _ in range(n)]
        for session in self.sessions:
            if session.status != pq.ConnStatus.OK:
                raise psycopg.OperationalError(session.error_message.decode())
            session.exec_(setup.encode())
            session.nonblocking = 1

    def close(self):
        for session in self.sessions:
            session.finish()
        self.gatekeeper.close()

    def all(self, texts):
        """Give session i texts[i] (several statements, one message), or nothing if None."""
        busy = {}
        for i, text in enumerate(texts):
            if text is not None:
                self.sessions[i].send_query(text.encode())
                busy[i] = []
        for i in busy:
            self._flush(self.sessions[i])
        return busy

    @staticmethod
    def _flush(session):
        while session.flush():
            time.sleep(0)

    def meet(self, texts):
        """Give every session its text, which runs GATE, and let all go at once."""
        with self.gatekeeper.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_lock(7071)")
            busy = self.all(texts)
            self._until_all_wait(cursor, len(busy))
            cursor.execute("SELECT pg_advisory_unlock(7071)")
        return self.answers(busy)

    @staticmethod
    def _until_all_wait(cursor, n):
        patience = time.monotonic() + PATIENCE
        while cursor.execute(_WAITING).fetchone()[0] < n:
            if time.monotonic() > patience:
                raise Stuck("not every session reached the gate")

    def answers(self, busy):
        """Collect, by session, the results of each statement, in order."""
        patience = time.monotonic() + PATIENCE
        waiting = set(busy)
        with selectors.DefaultSelector() as selector:
            for i in waiting:
                selector.register(self.sessions[i].socket, selectors.EVENT_READ, i)
            while waiting:
                ready = selector.select(timeout=1)
                if time.monotonic() > patience:
                    raise Stuck(f"no answer from {len(waiting)} sessions")
                for key, _ in ready:
                    if self._read(key.data, busy[key.data]):
                        waiting.discard(key.data)
                        selector.unregister(key.fileobj)
        return busy

    def _read(self, i, results):
        """Read what has come; true once the session is idle again."""
        session = self.sessions[i]
        session.consume_input()
        while not session.is_busy():
            result = session.get_result()
            if result is None:
                return True
            results.append(result)
        return False
