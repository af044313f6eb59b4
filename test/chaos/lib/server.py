"""The servers and the pooler that are broken on purpose.

Each is a child of the driver, and the kernel is told to end it if the driver
ends: a driver that is killed leaves nothing running.  They listen on Unix
sockets only.  What clients connect to is the directory "current", a symbolic
link to that of the server which takes writes; a failover moves the link, as a
virtual address would be moved.
"""

import ctypes
import os
import re
import shutil
import signal
import subprocess
import time

import psycopg

PATIENCE = 300          # seconds until what does not happen is a failure
PORT = 5432

_libc = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


class Stuck(Exception):
    """Something that had to happen did not."""


def die_with_parent(how=signal.SIGKILL):
    _libc.prctl(_PR_SET_PDEATHSIG, int(how))


def until(condition, what):
    """Poll; the value of condition() once it is true."""
    patience = time.monotonic() + PATIENCE
    while not (value := condition()):
        if time.monotonic() > patience:
            raise Stuck(f"waited in vain: {what}")
        time.sleep(0.005)
    return value


def run(*command):
    """A program of the server's; its output is shown if it fails."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False,
                          preexec_fn=die_with_parent)
    if done.returncode != 0:
        raise Stuck(f"{command[0]}: status {done.returncode}\n{done.stdout}")
    return done.stdout


def point(link, target):
    """Make link a symbolic link to target, in one step."""
    os.symlink(target, f"{link}.new")
    os.replace(f"{link}.new", link)


class Node:
    """A PostgreSQL server.  Its socket is not in its data, which is copied to standbys."""

    SETTINGS = """
        listen_addresses = ''
        fsync = off
        max_connections = 60
        max_prepared_transactions = 60
        shared_buffers = 32MB
        max_wal_size = 8MB
        min_wal_size = 2MB
        restart_after_crash = on
        autovacuum_naptime = 1
        log_line_prefix = '%m [%p] '
        log_min_error_statement = panic
        """

    def __init__(self, directory):
        self.directory = directory
        self.name = os.path.basename(directory)
        self.sockets = f"{directory}.sockets"
        self.log = f"{directory}.log"
        os.mkdir(self.sockets)
        self.process = None

    def init(self, wal=None, **settings):
        waldir = [f"--waldir={wal}"] if wal else []
        run("initdb", "--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8",
            "--no-sync", "--no-instructions", "--wal-segsize=1", *waldir, self.directory)
        self.configure(self.SETTINGS)
        self.configure(f"unix_socket_directories = '{self.sockets}'")
        for name, value in settings.items():
            self.configure(f"{name} = '{value}'")

    def copy_of(self, primary):
        """Become a standby of another node."""
        run("pg_basebackup", f"--host={primary.sockets}", f"--port={PORT}", "--username=postgres",
            f"--pgdata={self.directory}", "--checkpoint=fast", "--no-sync", "--wal-method=stream")
        self.configure(f"unix_socket_directories = '{self.sockets}'\n"
                       f"primary_conninfo = 'host={primary.sockets} port={PORT} user=postgres "
                       f"application_name={self.name}'")
        with open(f"{self.directory}/standby.signal", "w", encoding="ascii"):
            pass

    def configure(self, lines):
        with open(f"{self.directory}/postgresql.conf", "a", encoding="utf-8") as conf:
            conf.write(lines.replace("        ", "") + "\n")

    def start(self):
        """Start, and wait until it takes connections."""
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                ["postgres", "-D", self.directory, "-p", str(PORT)], stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, start_new_session=True,
                preexec_fn=lambda: die_with_parent(signal.SIGQUIT))
        until(self.answers, f"{self.name} takes connections")

    def is_running(self):
        return self.process is not None and self.process.poll() is None

    def answers(self):
        if not self.is_running():
            raise Stuck(f"{self.name} ended with status {self.process.returncode}")
        try:
            self.connect().close()
        except psycopg.OperationalError:
            return False
        return True

    def log_end(self):
        return os.path.getsize(self.log)

    def logged(self, pattern, since):
        """Whether it wrote that, in bytes, after its log ended there."""
        with open(self.log, "rb") as log:
            log.seek(since)
            return re.search(pattern, log.read()) is not None

    def at_rest(self):
        """No session is left, not even one whose client is gone; so nothing happens any more."""
        return not self.ask("SELECT pid FROM pg_stat_activity "
                            "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()")

    def stop(self):
        """At once, without a checkpoint: the next start recovers."""
        if self.is_running():
            self.process.send_signal(signal.SIGQUIT)
            self.process.wait(PATIENCE)

    def remove(self):
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def connect(self, database="postgres"):
        return psycopg.connect(host=self.sockets, port=PORT, user="postgres",
                               dbname=database, autocommit=True)

    def ask(self, sql, *params):
        """The rows of one statement, in a session of its own."""
        with self.connect() as db:
            cursor = db.execute(sql, params)
            return cursor.fetchall() if cursor.description else []

    def told(self, sql, *params):
        """The same for one value; None while the server does not answer."""
        try:
            return self.ask(sql, *params)[0][0]
        except psycopg.OperationalError:
            return None


class Pooler:
    """pgbouncer in transaction mode, in front of whatever "current" is."""

    CONFIG = """
[databases]
postgres = host={target} port={port}
[pgbouncer]
listen_addr =
unix_socket_dir = {directory}
listen_port = {port}
auth_type = trust
auth_file = {directory}/users
pool_mode = transaction
default_pool_size = 4
server_reset_query =
server_login_retry = 0.02
query_wait_timeout = 20
ignore_startup_parameters = extra_float_digits
logfile = {directory}.log
"""

    # Debian installs it where only root looks.
    PROGRAM = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")

    def __init__(self, directory, target):
        self.directory = directory
        self.process = None
        os.mkdir(directory)
        with open(f"{directory}/users", "w", encoding="ascii") as users:
            users.write('"postgres" ""\n')
        with open(f"{directory}/pgbouncer.ini", "w", encoding="ascii") as ini:
            ini.write(self.CONFIG.format(target=target, directory=directory, port=PORT))

    def start(self):
        socket = f"{self.directory}/.s.PGSQL.{PORT}"
        if os.path.exists(socket):
            os.unlink(socket)
        self.process = subprocess.Popen(
            [self.PROGRAM, "--quiet", f"{self.directory}/pgbouncer.ini"], stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            preexec_fn=die_with_parent)
        until(lambda: os.path.exists(socket) or self.has_ended(), "pgbouncer listens")
        if self.has_ended():
            raise Stuck(f"pgbouncer ended with status {self.process.returncode}")

    def has_ended(self):
        return self.process is None or self.process.poll() is not None

    def ask_to_end(self, how):
        """A signal; some let it wait for open transactions."""
        self.process.send_signal(how)

    def stop(self):
        if not self.has_ended():
            self.process.kill()
            self.process.wait()

    def restart(self):
        """What it has not passed on yet is never sent."""
        self.stop()
        self.start()
