"""A pgbouncer in transaction mode, with fewer server sessions than clients."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import time

import psycopg

SESSIONS = 4
PORT = 6432             # of a Unix socket: only a part of its name
PATIENCE = 60           # seconds until a pooler that does not answer is a failure

# Debian installs it where only root looks.
PROGRAM = shutil.which("pgbouncer", path=os.environ["PATH"] + ":/usr/sbin:/usr/local/sbin")

CONFIGURATION = """
[databases]
* = host={host} port={port} user={user}
[pgbouncer]
listen_addr =
unix_socket_dir = {directory}
listen_port = {pooler_port}
auth_type = any
admin_users = {user}
pool_mode = transaction
default_pool_size = {sessions}
server_reset_query =
ignore_startup_parameters = extra_float_digits
"""


class Pooler:
    """Runs within a with block; address is what PGHOST and PGPORT must be to get there."""

    def __enter__(self):
        self._directory = tempfile.TemporaryDirectory(prefix="pooler-")
        directory = self._directory.name
        self.address = {"PGHOST": directory, "PGPORT": str(PORT)}
        path = pathlib.Path(directory, "pgbouncer.ini")
        path.write_text(CONFIGURATION.format(
            host=os.environ["PGHOST"], port=os.environ["PGPORT"], user=os.environ["PGUSER"],
            directory=directory, pooler_port=PORT, sessions=SESSIONS), encoding="utf-8")
        self._log = open(pathlib.Path(directory, "log"), "w+", encoding="utf-8")
        self._process = subprocess.Popen([PROGRAM, str(path)], stdin=subprocess.DEVNULL,
                                         stdout=self._log, stderr=subprocess.STDOUT)
        try:
            self._await()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _await(self):
        patience = time.monotonic() + PATIENCE
        while True:
            try:
                self.clients()
                return
            except psycopg.OperationalError:
                if self._process.poll() is not None or time.monotonic() > patience:
                    self._log.seek(0)
                    raise RuntimeError(f"no pooler: {self._log.read()}") from None
                time.sleep(0.05)

    def clients(self):
        """How many are connected to the database of PGDATABASE; asked of the console."""
        with psycopg.connect(host=self.address["PGHOST"], port=PORT, dbname="pgbouncer",
                             user=os.environ["PGUSER"], autocommit=True,
                             cursor_factory=psycopg.ClientCursor) as console:
            cursor = console.execute("SHOW CLIENTS")
            place = [column.name for column in cursor.description].index("database")
            return sum(row[place] == os.environ["PGDATABASE"] for row in cursor)

    def __exit__(self, *exception):
        self._process.terminate()
        self._process.wait()
        self._log.close()
        self._directory.cleanup()
