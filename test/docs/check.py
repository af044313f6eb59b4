#!/usr/bin/python3
"""Run the examples of the documentation and compare what they print.

    test/docs/check.py [--update] [DOCUMENT]...

DOCUMENT is README.md or one of docs/*.md; all of them when none is named.
Each gets a database of its own, made and dropped on the server that PGHOST,
PGPORT, PGUSER and PGDATABASE name, as a user who may do that; roles that its
examples create are dropped with it.  How examples are marked is described in
document.py.  Output is TAP.

Values that differ each time (tokens, times) may differ, and so may the widths
of columns.  --update writes what the examples print into the documents, where
that differs from what stands there.

Besides, links within the repository must lead somewhere, tests that the
documents name must exist, and the reference in the README must agree with the
catalog.
"""
import os
import re
import subprocess
import sys
import traceback
from pathlib import Path

import reference
from document import RUN, SHOWN, Document, Malformed
from sessions import PSQL, Hanging, NotHere, Runner, normalized

ROOT = Path(__file__).resolve().parents[2]
LINKED = ("*.md", "docs/*.md", "examples/*/*.md", "test/*.md", "bench/*.md")
NAMED_TEST = re.compile(r"\b((?:sql|test)/[\w/.-]+\.\w+)")


class Tap:
    def __init__(self):
        self.count = 0
        self.failed = 0

    def report(self, passed, name, problem=""):
        self.count += 1
        self.failed += not passed
        print(f"{'ok' if passed else 'not ok'} {self.count} - {name}")
        for line in problem.rstrip("\n").split("\n") if not passed else ():
            print(f"# {line}")
        sys.stdout.flush()

    def skip(self, name, reason):
        self.count += 1
        print(f"ok {self.count} - {name} # SKIP {reason}")

    def close(self):
        print(f"1..{self.count}")
        return 1 if self.failed else 0


def query(sql):
    done = subprocess.run([*PSQL, "-At", "--set=ON_ERROR_STOP=1"], input=sql, text=True,
                          stdout=subprocess.PIPE, check=True)
    return done.stdout


class Database:
    """A database for one document; its name is in PGDATABASE meanwhile."""

    def __init__(self, document):
        self.name = "docs_" + document.path.stem.lower().replace("-", "_")
        self.outer = os.environ.get("PGDATABASE", "postgres")

    def __enter__(self):
        self.roles = self._roles()
        query("SET client_min_messages = warning;\n"
              f"DROP DATABASE IF EXISTS {self.name};\nCREATE DATABASE {self.name};")
        os.environ["PGDATABASE"] = self.name

    def __exit__(self, *exception):
        os.environ["PGDATABASE"] = self.outer
        query(f"DROP DATABASE {self.name} WITH (FORCE);")
        for role in self._roles() - self.roles:
            query(f'DROP ROLE "{role}";')

    @staticmethod
    def _roles():
        return set(query("SELECT rolname FROM pg_roles;").splitlines())


def check_examples(document, tap, update):
    changed = []
    runner = Runner()
    with Database(document):
        try:
            for block in document.blocks:
                check_block(document, block, runner, tap, changed)
        finally:
            runner.close()
    if update and changed:
        document.replace_outputs(changed)


def check_block(document, block, runner, tap, changed):
    name = f"{document.name}:{block.line} {block.language}"
    other = block.directives.get("run by")
    if other:
        tap.report((ROOT / other).is_file(), f"{name}, run by {other}", "no such file")
        return
    if block.language in SHOWN:
        return
    if block.language not in RUN:
        tap.report(False, name, "neither a language to run nor one to show")
        return
    try:
        printed = runner.run(block, f"{document.name}:{block.line}")
    except Hanging as hanging:
        tap.report(False, name, f"no end after:\n{hanging}")
        return
    except NotHere as not_here:
        tap.skip(name, not_here)
        return
    except Exception:
        tap.report(False, name, traceback.format_exc())
        return
    if "any" in block.directives:
        tap.report("ERROR: " not in printed, name, printed)
        return
    expected = block.output.text if block.output else ""
    same = normalized(printed) == normalized(expected)
    tap.report(same, name, f"printed:\n{printed}\nexpected:\n{expected}")
    if not same:
        changed.append((block, printed))


def check_links(tap):
    documents = {path: Document(path, ROOT) for pattern in LINKED
                 for path in sorted(ROOT.glob(pattern))}
    for document in documents.values():
        dead = [f"line {number}: {target}" for number, target in document.links()
                if not leads_somewhere(document.path, target, documents)]
        tap.report(not dead, f"{document.name}: links", "\n".join(dead))


def check_named_tests(document, tap):
    missing = [name for block in document.blocks if block.language == "sh"
               for name in NAMED_TEST.findall(block.text) if not (ROOT / name).is_file()]
    tap.report(not missing, f"{document.name}: tests named", "\n".join(missing))


def leads_somewhere(path, target, documents):
    if target.startswith(("https://", "mailto:")):
        return True
    name, _, anchor = target.partition("#")
    file = (path.parent / name).resolve() if name else path
    if not file.exists():
        return False
    return not anchor or (file in documents and anchor in documents[file].anchors())


def check_reference(readme, tap):
    with Database(readme):
        query("CREATE EXTENSION idempotency;")
        functions = reference.catalog(query(reference.ARGUMENTS))
        settings = reference.catalog(query(reference.SETTINGS))
    problems = [*reference.differences(reference.documented_arguments(readme), functions)]
    tap.report(not problems, "README.md: functions", "\n".join(problems))
    problems = [*reference.differences(reference.documented_settings(readme), settings)]
    tap.report(not problems, "README.md: settings", "\n".join(problems))


def main(arguments):
    update = "--update" in arguments
    names = [a for a in arguments if a != "--update"]
    paths = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    tap = Tap()
    try:
        documents = [Document(path, ROOT) for path in paths]
    except Malformed as malformed:
        tap.report(False, "documents", str(malformed))
        return tap.close()
    for document in documents:
        if not names or any((ROOT / n).resolve() == document.path for n in names):
            check_examples(document, tap, update)
    if not names:
        check_links(tap)
        check_named_tests(documents[0], tap)
        check_reference(documents[0], tap)
    return tap.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
