"""Examples that are programs of their own: Ruby, Node, Java, and Python with a
module that the checks themselves do without.

    missing(language, needs)
        Why it cannot be run here: None if it can.  needs is the module (in
        Java the class) that the example says it needs.
    run(language, text, directory)
        What it prints, followed by its status if that is not 0.

Modules are looked for where packages put them, and for Node also where "npm
install --global" does.

A Java example is compiled as Example.java, and its class Example is run.  It
finds the URL of its database in JDBC_URL: JDBC takes no Unix socket for a
host, so there the URL names UnixSocketFactory.java, compiled along with it.
"""
import getpass
import os
import subprocess
import sys
from glob import glob
from pathlib import Path
from urllib.parse import quote

LIMIT = 120                     # seconds until a program counts as hanging

NODE_PATH = ("/usr/share/nodejs", "/usr/local/lib/node_modules", "/usr/lib/node_modules")
JARS = ("spring*", "postgresql", "commons-logging")
NO_LOG = "org.apache.commons.logging.impl.NoOpLog"     # Spring's: it bears the time
SOCKET_FACTORY = Path(__file__).resolve().parent / "UnixSocketFactory.java"


def jars():
    return [jar for name in JARS for jar in sorted(glob(f"/usr/share/java/{name}.jar"))]


COMMANDS = {
    "python": [sys.executable],
    "ruby": ["/usr/bin/ruby"],
    "javascript": ["node"],
    "java": ["java", f"-Dorg.apache.commons.logging.Log={NO_LOG}", "-cp",
             ":".join([".", *jars()]), "Example"],
}
QUESTIONS = {
    "python": [sys.executable, "-c", "import {}"],
    "ruby": ["/usr/bin/ruby", "-e", "require '{}'"],
    "javascript": ["node", "-e", "require('{}')"],
    "java": ["javap", "-cp", ":".join(jars()), "{}"],
}
SOURCES = {"python": "example.py", "ruby": "example.rb", "javascript": "example.js",
           "java": "Example.java"}


def missing(language, needs):
    question = [part.format(needs) for part in QUESTIONS[language]]
    try:
        found = _start(question, ".").returncode == 0
    except FileNotFoundError:
        return f"no {question[0]} here"
    return None if found else f"no {needs} for {language} here"


def run(language, text, directory):
    source = Path(directory) / SOURCES[language]
    source.write_text(text, encoding="utf-8")
    if language == "java":
        compiled = _start(["javac", "-cp", ":".join(jars()), "-d", ".", source, SOCKET_FACTORY],
                          directory)
        if compiled.returncode:
            return _printed(compiled)
        return _printed(_start(COMMANDS["java"], directory))
    return _printed(_start([*COMMANDS[language], source], directory))


def _start(command, directory):
    return subprocess.run(command, cwd=directory, env=_environment(), timeout=LIMIT, text=True,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, check=False)


def _printed(done):
    return done.stdout + (f"exit status {done.returncode}\n" if done.returncode else "")


def _environment():
    path = ":".join([*filter(None, [os.environ.get("NODE_PATH")]), *NODE_PATH])
    return {**os.environ, "NODE_PATH": path, "JDBC_URL": _jdbc_url()}


def _jdbc_url():
    host, port = os.environ.get("PGHOST", ""), os.environ.get("PGPORT", "5432")
    user = quote(os.environ.get("PGUSER", getpass.getuser()))
    database = quote(os.environ.get("PGDATABASE", user))
    if not host.startswith("/"):
        return f"jdbc:postgresql://{host or 'localhost'}:{port}/{database}?user={user}"
    socket = quote(f"{host}/.s.PGSQL.{port}", safe="")
    return (f"jdbc:postgresql://localhost/{database}?user={user}"
            f"&socketFactory=UnixSocketFactory&socketFactoryArg={socket}")
