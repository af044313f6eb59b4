"""One connection, in each of the ways in which clients talk to PostgreSQL.

Statements are written once, with $1, $2, ... each used once and in order, and
every value is text.  A statement ends in one of three ways: it has rows;
Refused, the server said no and the transaction has failed; or Gone, nobody
knows.  That a server process says why it ends (FATAL) makes no difference: it
may say so after the commit.
"""

import os
import re
import signal
import socket
import subprocess

import psycopg
from psycopg import pq

from .server import PORT, die_with_parent

CANCELED_WAIT = "canceling wait for synchronous replication"
CANCELED_AND_ENDING = "canceling the wait for synchronous replication"

# How old and new versions of psycopg take it that libpq has no result at all.
NO_RESULT = (MemoryError, psycopg.OperationalError)

PLACEHOLDER = re.compile(r"\$(\d+)")


class Refused(Exception):
    """An error of a statement; the connection is as it was."""

    def __init__(self, sqlstate):
        super().__init__(sqlstate)
        self.sqlstate = sqlstate


class Gone(Exception):
    """The connection broke, or the client broke it."""


def literal(value):
    if value is None:
        return "NULL"
    text = value.replace("'", "''")
    return f"'{text}'"


def inline(sql, params):
    return PLACEHOLDER.sub(lambda match: literal(params[int(match[1]) - 1]), sql)


def raise_error(sqlstate, severity):
    """Of what an error message says; a dying connection often has none."""
    if not sqlstate or severity in ("FATAL", "PANIC") or sqlstate.startswith("08"):
        raise Gone(sqlstate)
    raise Refused(sqlstate)


class Session:
    """local: the last statement was committed, but its wait for a standby was cancelled."""

    def __init__(self, directory):
        self.conninfo = f"host={directory} port={PORT} user=postgres dbname=postgres"
        self.local = False

    def run(self, sql, *params):
        """The rows, as lists of text."""
        self.local = False
        return self._run(sql, params)

    def heard(self, message):
        """What the server says besides."""
        if CANCELED_WAIT in message or CANCELED_AND_ENDING in message:
            self.local = True

    def backend(self):
        return int(self.run("SELECT pg_backend_pid()::text")[0][0])


class Libpq(Session):
    """The C library itself.  mode: simple, extended or prepared."""

    def __init__(self, directory, mode):
        super().__init__(directory)
        self.mode, self.names = mode, {}
        self.pg = pq.PGconn.connect(self.conninfo.encode())
        if self.pg.status != pq.ConnStatus.OK:
            raise Gone(self.pg.error_message.decode())
        self.pg.notice_handler = lambda notice: self.heard(
            (notice.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"").decode())

    def _run(self, sql, params):
        try:
            return self._exec(sql, params)
        except NO_RESULT as error:
            raise Gone("no result") from error

    def _exec(self, sql, params):
        values = [None if value is None else value.encode() for value in params]
        if self.mode == "simple" or not params:
            return self._rows(self.pg.exec_(inline(sql, params).encode()))
        if self.mode == "extended":
            return self._rows(self.pg.exec_params(sql.encode(), values))
        if sql not in self.names:
            name = f"s{len(self.names)}".encode()
            self._rows(self.pg.prepare(name, sql.encode()))
            self.names[sql] = name
        return self._rows(self.pg.exec_prepared(self.names[sql], values))

    def _rows(self, result):
        if result.status == pq.ExecStatus.FATAL_ERROR:
            fields = [result.error_field(field) for field in (
                pq.DiagnosticField.SQLSTATE, pq.DiagnosticField.SEVERITY_NONLOCALIZED)]
            raise_error(*(field and field.decode() for field in fields))
        return [[None if value is None else value.decode()
                 for value in (result.get_value(row, column) for column in range(result.nfields))]
                for row in range(result.ntuples)]

    def send(self, sql, *params):
        """Sent whole, its answer not waited for."""
        try:
            self.pg.send_query(inline(sql, params).encode())
            while self.pg.flush():
                pass
        except psycopg.OperationalError as error:
            raise Gone("not sent") from error

    def send_torn(self, sql, size):
        """The first bytes of the message only."""
        text = sql.encode() + b"\0"
        message = b"Q" + (len(text) + 4).to_bytes(4, "big") + text
        try:
            with socket.socket(fileno=os.dup(self.pg.socket)) as wire:
                wire.setblocking(True)
                wire.sendall(message[:min(size, len(message) - 1)])
        except (OSError, psycopg.OperationalError) as error:
            raise Gone("not sent") from error

    def cut(self):
        """Break the connection without taking leave."""
        try:
            wire = socket.socket(fileno=os.dup(self.pg.socket))
        except (OSError, psycopg.Error):
            return                      # the server was faster
        try:
            wire.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        wire.close()
        self.close()

    def close(self):
        self.pg.finish()


class Psycopg(Libpq):
    """A connection of psycopg's; prepare: as a prepared statement each time."""

    def __init__(self, directory, prepare):
        Session.__init__(self, directory)
        try:
            self.db = psycopg.connect(
                self.conninfo, autocommit=True, prepare_threshold=0 if prepare else None,
                cursor_factory=psycopg.Cursor if prepare else psycopg.ClientCursor)
        except psycopg.OperationalError as error:
            raise Gone(str(error)) from error
        self.pg = self.db.pgconn
        self.db.add_notice_handler(lambda notice: self.heard(notice.message_primary or ""))

    def _exec(self, sql, params):
        sql = PLACEHOLDER.sub("%s", sql.replace("%", "%%")) if params else sql
        try:
            cursor = self.db.execute(sql, params or None)
            return [list(row) for row in cursor.fetchall()] if cursor.description else []
        except psycopg.Error as error:
            if self.db.closed:
                raise Gone(error.sqlstate) from error
            raise_error(error.sqlstate, error.diag.severity_nonlocalized)

    def close(self):
        self.db.close()


class Psql(Session):
    """A psql that is told its statements on standard input."""

    SETUP = r"""
\set QUIET on
\set VERBOSITY terse
\pset footer off
\pset tuples_only on
\pset format unaligned
\pset fieldsep '\x1f'
\pset null '\x1e'
"""
    FIELD, NULL = "\x1f", "\x1e"

    def __init__(self, directory):
        super().__init__(directory)
        self.said = os.memfd_create("psql")
        self.read = 0
        self.psql = subprocess.Popen(
            ["psql", "--no-psqlrc", self.conninfo], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self.said, encoding="utf-8", preexec_fn=die_with_parent)
        try:
            self._write(self.SETUP)
            self._answer()
        except Gone:
            self.cut()
            raise

    def _write(self, text):
        try:
            self.psql.stdin.write(text)
            self.psql.stdin.flush()
        except (BrokenPipeError, ValueError) as error:
            raise Gone("psql") from error

    def _answer(self):
        """What it printed until the mark, and the SQLSTATE before that."""
        self._write("\\echo done :SQLSTATE\n")
        lines = []
        for line in self.psql.stdout:
            line = line.rstrip("\n")
            if line.startswith("done "):
                return lines, line[5:]
            lines.append(line)
        raise Gone("psql")

    def _run(self, sql, params):
        self._write(inline(sql, params) + ";\n")
        lines, sqlstate = self._answer()
        self._listen()
        if sqlstate != "00000":
            raise_error(sqlstate, "FATAL" if sqlstate.startswith("57P0") else "ERROR")
        return [[None if field == self.NULL else field for field in line.split(self.FIELD)]
                for line in lines if line]

    def _listen(self):
        """To what it wrote to standard error since."""
        said = os.pread(self.said, 1 << 16, self.read)
        self.read += len(said)
        self.heard(said.decode(errors="replace"))

    def send(self, sql, *params):
        self._write(inline(sql, params) + ";\n")

    def send_torn(self, sql, _size):
        """No statement has ended yet, so psql sends nothing."""
        self._write(sql + "\n")

    def cut(self):
        self.psql.send_signal(signal.SIGKILL)
        self.close()

    def close(self):
        if self.psql.stdout.closed:
            return
        try:
            self.psql.stdin.close()
        except BrokenPipeError:
            pass
        self.psql.wait()
        self.psql.stdout.close()
        os.close(self.said)


# Name, how to open it, and whether it goes through the pooler, where a session
# in the server is another client's after each transaction, so that statements
# are not prepared by name.
KINDS = (
    ("psycopg", lambda directory: Psycopg(directory, prepare=False), False),
    ("psycopg, prepared", lambda directory: Psycopg(directory, prepare=True), False),
    ("libpq, simple", lambda directory: Libpq(directory, "simple"), False),
    ("libpq, extended", lambda directory: Libpq(directory, "extended"), False),
    ("libpq, prepared", lambda directory: Libpq(directory, "prepared"), False),
    ("psql", Psql, False),
    ("pooler, simple", lambda directory: Libpq(directory, "simple"), True),
    ("pooler, extended", lambda directory: Libpq(directory, "extended"), True),
)
