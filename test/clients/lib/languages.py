"""The drivers under test: how each is built, started and told apart."""

import os
import pathlib
import subprocess
import tempfile
from dataclasses import dataclass

CLIENTS = pathlib.Path(__file__).resolve().parent.parent
SOCKET_FACTORY = CLIENTS.parent / "docs" / "UnixSocketFactory.java"
JDBC_JAR = "/usr/share/java/postgresql.jar"

PATIENCE = 120          # seconds until a program that does not end counts as hanging

# Where programs are compiled to: CLIENTS_BUILT, which then several tests share.
_temporary = tempfile.TemporaryDirectory(prefix="clients-")
BUILT = pathlib.Path(os.environ.get("CLIENTS_BUILT") or _temporary.name)


@dataclass
class Driver:
    """One driver; its programs are runner, snippet and traps in a directory of its name."""

    name: str
    title: str
    language: str               # of its code blocks in Markdown
    suffix: str
    ways: tuple                 # of the runner
    pooled: str                 # the way that works behind a pooler in transaction mode
    version: tuple              # a command that prints it
    interpreter: tuple = ()
    resolution: int = 1         # of its timestamps, in microseconds
    column_field: bool = True   # of an error; else SQLSTATE is all that it hands on

    def source(self, program):
        if self.name == "jdbc":
            program = program.capitalize()
        return CLIENTS / self.name / (program + self.suffix)

    def command(self, program):
        """How a program is started, once it is built."""
        if self.name == "jdbc":
            return ["java", *JAVA_FLAGS, "-cp", f"{BUILT / 'jdbc'}:{JDBC_JAR}",
                    program.capitalize()]
        if self.interpreter:
            return [*self.interpreter, str(self.source(program))]
        return [str(BUILT / self.name / program)]

    def build(self):
        """Compile all its programs; None where that works, else what the compiler says."""
        builder = BUILDERS.get(self.name)
        built = BUILT / self.name / "built"
        if builder is None or built.exists():
            return None
        built.parent.mkdir(parents=True, exist_ok=True)
        for command in builder(self):
            done = subprocess.run(command, text=True, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, env=environment(), check=False)
            if done.returncode:
                return done.stdout
        built.touch()
        return None

    def start(self, program, *arguments, address=None):
        return subprocess.Popen([*self.command(program), *arguments], text=True,
                                encoding="utf-8", stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                env=environment(address))

    def run(self, program, *arguments, given="", address=None):
        """(status, what it printed, what it complained of)"""
        process = self.start(program, *arguments, address=address)
        try:
            printed, complaint = process.communicate(given, timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            printed, complaint = process.communicate()
            return None, printed, f"no end after {PATIENCE} s\n{complaint}"
        return process.returncode, printed, complaint

    def its_version(self):
        done = subprocess.run(self.version, text=True, capture_output=True, check=False,
                              cwd=CLIENTS, env=environment())
        return done.stdout.strip() or done.stderr.strip()


# Starting is most of what a short program of Java does.
JAVA_FLAGS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")


def environment(address=None):
    """What a program is told of the database; of another address if one is given."""
    names = {**os.environ, **(address or {})}
    return {**names, "JDBC_URL": _jdbc_url(names), "GO111MODULE": "off",
            "GOPATH": "/usr/share/gocode",
            "GOCACHE": os.environ.get("GOCACHE") or str(BUILT / "go-cache")}


def _jdbc_url(names):
    """JDBC takes no Unix socket for a host, so the URL names a factory of them."""
    socket = f"{names['PGHOST']}/.s.PGSQL.{names['PGPORT']}".replace("/", "%2F")
    return (f"jdbc:postgresql://localhost/{names['PGDATABASE']}?user={names['PGUSER']}"
            f"&socketFactory=UnixSocketFactory&socketFactoryArg={socket}")


def _of_libpq(driver):
    include, libraries = (subprocess.run(
        ["pkg-config", flag, "libpq"], text=True, capture_output=True,
        check=True).stdout.split() for flag in ("--cflags", "--libs"))
    for program in programs(driver):
        yield ["gcc", "-Wall", "-Wextra", "-Werror", "-O1", *include, "-o",
               str(BUILT / driver.name / program), str(driver.source(program)), *libraries]


def _of_pgx(driver):
    for program in programs(driver):
        yield ["go", "build", "-o", str(BUILT / driver.name / program),
               str(driver.source(program))]


def _of_jdbc(driver):
    yield ["javac", "-Xlint:all", "-Werror", "-cp", JDBC_JAR, "-d", str(BUILT / driver.name),
           str(SOCKET_FACTORY), *(str(driver.source(p)) for p in programs(driver))]


BUILDERS = {"libpq": _of_libpq, "pgx": _of_pgx, "jdbc": _of_jdbc}


def programs(driver):
    return [p for p in ("runner", "snippet", "traps") if driver.source(p).exists()]


def _package(name):
    return ("dpkg-query", "--show", "--showformat=${source:Upstream-Version}", name)


def _npm(name):
    package = f"node_modules/{name}/package.json"
    return ("node", "-p", f"JSON.parse(fs.readFileSync('{package}')).version")


PYTHON, PERL, PHP, RUBY, NODE = (("/usr/bin/python3",), ("perl",), ("php",), ("ruby",), ("node",))

DRIVERS = (
    Driver("libpq", "C, libpq", "c", ".c", ("text", "binary", "prepared", "simple"), "text",
           ("pkg-config", "--modversion", "libpq")),
    Driver("psycopg", "Python, psycopg 3", "python", ".py",
           ("text", "binary", "prepared", "client"), "text", _package("python3-psycopg"), PYTHON),
    Driver("psycopg2", "Python, psycopg2", "python", ".py", ("simple",), "simple",
           _package("python3-psycopg2"), PYTHON),
    Driver("pg", "Node.js, pg", "javascript", ".mjs", ("unnamed", "named"), "unnamed",
           _npm("pg"), NODE, 1000),
    Driver("postgres", "Node.js, postgres", "javascript", ".mjs", ("prepared", "unnamed"),
           "unnamed", _npm("postgres"), NODE, 1000),
    Driver("pgx", "Go, pgx", "go", ".go", ("prepared", "described", "simple"), "simple",
           _package("golang-github-jackc-pgx-v4-dev")),
    Driver("jdbc", "Java, JDBC", "java", ".java",
           ("extended", "prepared", "simple"), "extended", _package("libpostgresql-jdbc-java")),
    Driver("ruby-pg", "Ruby, pg", "ruby", ".rb", ("text", "binary", "prepared"), "text",
           _package("ruby-pg"), RUBY),
    Driver("pdo", "PHP, PDO", "php", ".php", ("prepared", "unnamed", "emulated"), "unnamed",
           ("php", "-r", "echo PHP_VERSION;"), PHP, column_field=False),
    Driver("dbd-pg", "Perl, DBD::Pg", "perl", ".pl", ("prepared", "simple"), "simple",
           ("perl", "-MDBD::Pg", "-e", "print $DBD::Pg::VERSION"), PERL),
)


def chosen():
    """All of them, or those that CLIENTS names, between spaces."""
    names = os.environ.get("CLIENTS", "").split()
    return [driver for driver in DRIVERS if not names or driver.name in names]
