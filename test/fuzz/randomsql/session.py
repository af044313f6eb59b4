"""A session that sends statements ahead of their answers, and judges these.

Statements go in a pipeline, each a unit of its own, so that what is measured
is the server.  The answers come in order; a model of the transaction, which
needs to know no more than how the statements before ended, says which
SQLSTATEs the next may have.
"""

from collections import Counter

import psycopg
from psycopg import pq

from .values import NONE

AHEAD = 100             # statements sent before the first answer is read
EVERYWHERE = frozenset({"57014"})       # the statement's timeout
ABORTED = frozenset({"25P02"})
PARSED_FIRST = frozenset({"42601"})     # seen before the state of the transaction
DULL_WARNINGS = {"25001", "25P01", "01007", "01006"}
SHOWN = 1500            # characters of a statement in a report

OUTCOMES = {"claimed", "executed", "replayed", "in_progress", "held", "mismatch", "unknown",
            "released", "absent"}
RESPONSE = ("response_code", "response_body", "response_headers", "response_bytes")


class Model:
    """Where the transaction stands."""

    def __init__(self, restricted):
        self.everywhere = EVERYWHERE | ({"42501"} if restricted else NONE)
        self.open = self.failed = self.serializable = self.read_only = False
        self.at_commit = NONE

    def allowed(self, statement):
        may = statement.may | self.everywhere
        if statement.kind in ("commit", "chain"):
            may |= {"ID002"} | self.at_commit
        if self.failed and statement.kind not in ("commit", "chain", "rollback", "rollback to"):
            return ABORTED | (statement.may & PARSED_FIRST)
        if self.open:
            may |= {"40001"} if self.serializable else NONE
            may |= {"25006"} if self.read_only else NONE
        elif statement.unfinished:
            may |= {"ID002"}
        return may

    def note(self, statement, failed):
        kind = statement.kind
        if kind in ("commit", "rollback"):
            self.open = self.failed = False
        elif kind == "chain":
            self.open = not failed
            self.failed = False
        elif failed:
            self.failed = self.open
        elif kind == "begin":
            self.open = True
            self.serializable, self.read_only = statement.serializable, statement.read_only
        elif kind == "rollback to":
            self.failed = False
        if not self.open:
            self.at_commit = NONE
        elif kind == "hold" and not failed:
            self.at_commit |= statement.may | {"0A000"}


def sqlstate(result):
    if result.status in (pq.ExecStatus.FATAL_ERROR, pq.ExecStatus.BAD_RESPONSE):
        state = result.error_field(pq.DiagnosticField.SQLSTATE)
        return state.decode() if state else "connection lost"
    return None


def message(result):
    return result.error_message.decode(errors="replace").strip()


def answers(result):
    """The rows of an answer as dictionaries, if they are what a claim or lookup returns."""
    if result.status != pq.ExecStatus.TUPLES_OK:
        return
    names = [(result.fname(i) or b"").decode() for i in range(result.nfields)]
    if {"outcome", "state", "response_code"} <= set(names) and len(set(names)) == len(names):
        for n in range(result.ntuples):
            yield {name: result.get_value(n, i) for i, name in enumerate(names)}


def outcome_of(row):
    """One whose holder has not committed is another kind of answer."""
    outcome = row["outcome"].decode()
    return "held" if outcome == "in_progress" and row["state"] is None else outcome


def odd_row(row):
    """What is wrong with it, or None."""
    outcome = outcome_of(row)
    if outcome not in OUTCOMES:
        return f"outcome {outcome}"
    if "token" in row and (row["token"] is not None) != (outcome == "claimed"):
        return f"{outcome} with token {row['token']}"
    if outcome not in ("replayed", "executed") and any(row[name] is not None for name in RESPONSE):
        return f"{outcome} with a response"
    if (row["state"] is None) != (outcome in ("absent", "held")):
        return f"{outcome} with state {row['state']}"
    return None


class Session:
    def __init__(self, generator, conninfo, restricted=False):
        self.generator = generator
        self.model = Model(restricted)
        self.calls = Counter()          # by function
        self.states = Counter()         # by function and SQLSTATE
        self.outcomes = Counter()
        self.faults = []
        self.last = []                  # of the current transaction, to be shown
        self.connection = pq.PGconn.connect(conninfo.encode())
        if self.connection.status != pq.ConnStatus.OK:
            raise psycopg.OperationalError(self.connection.error_message.decode())
        self.connection.notice_handler = self._notice

    def run(self, calls):
        """Until so many calls were made."""
        batch = []
        while sum(self.calls.values()) < calls and "connection lost" not in self.faults[-1:]:
            batch += self.generator.next()
            if len(batch) >= AHEAD:
                self._send(batch)
                batch = []
        self._send(batch)
        self.connection.exec_(b"ROLLBACK")
        self.connection.finish()

    def _send(self, batch):
        """The batch, in order; what needs the simple protocol cuts the pipeline."""
        pipelined = []
        for statement in batch:
            if not statement.simple:
                pipelined.append(statement)
                continue
            self._pipeline(pipelined)
            pipelined = []
            self._judge(statement, self.connection.exec_(statement.text.encode()))
        self._pipeline(pipelined)

    def _pipeline(self, statements):
        connection = self.connection
        if not statements or connection.status != pq.ConnStatus.OK:
            return
        connection.enter_pipeline_mode()
        for statement in statements:
            self._enqueue(statement)
            connection.pipeline_sync()
        for statement in statements:
            result = self._result()
            self._judge(statement, result)
            if result is None:
                return
        connection.exit_pipeline_mode()

    def _result(self):
        """Of one statement: its own, or the error of the commit that follows it."""
        last = self.connection.get_result()
        result = self.connection.get_result() or self.connection.get_result()
        while result is not None and result.status != pq.ExecStatus.PIPELINE_SYNC:
            last = result
            result = self.connection.get_result() or self.connection.get_result()
        return last

    def _enqueue(self, statement):
        values = statement.params
        self.connection.send_query_params(
            statement.text.encode(),
            [v.text if v.binary is None else v.binary[1] for v in values] or None,
            [0 if v.binary is None else v.binary[0] for v in values] or None,
            [pq.Format.TEXT if v.binary is None else pq.Format.BINARY for v in values] or None)

    def _judge(self, statement, result):
        state = "connection lost" if result is None else sqlstate(result)
        allowed = self.model.allowed(statement)
        self.last.append(f"{state or 'ok'}: {statement.text[:200]}")
        if state and state not in allowed:
            self._fault(f"{state}: {message(result) if result else ''}\n"
                        f"allowed: {' '.join(sorted(allowed))}", statement)
            if state == "connection lost" or state.startswith("57P"):
                self.faults.append("connection lost")
        elif not state:
            self._look_at(result, statement)
        self._count(statement, state)
        self.model.note(statement, state is not None)
        if not self.model.open:
            self.last = []

    def _look_at(self, result, statement):
        if ").*" in statement.text:     # a call for each column
            return
        for row in answers(result):
            self.outcomes[outcome_of(row)] += 1
            wrong = odd_row(row)
            if wrong:
                self._fault(wrong, statement)

    def _count(self, statement, state):
        """What a failed transaction refuses is no call."""
        if state in ABORTED:
            return
        self.calls.update(statement.functions)
        if len(statement.functions) == 1 or not state:
            self.states.update((function, state or "00000") for function in statement.functions)

    def _fault(self, what, statement):
        params = [v.text or v.binary for v in statement.params]
        self.faults.append(f"{what}\n{statement.text[:SHOWN]}\nparameters: {params}\n"
                           "in the transaction:\n  " + "\n  ".join(self.last[-20:]))

    def _notice(self, result):
        state = result.error_field(pq.DiagnosticField.SQLSTATE).decode()
        severity = result.error_field(pq.DiagnosticField.SEVERITY_NONLOCALIZED)
        if severity == b"WARNING" and state not in DULL_WARNINGS:
            self.faults.append(f"WARNING {state}: {message(result)}\nafter:\n  " + "\n  ".join(self.last[-20:]))
