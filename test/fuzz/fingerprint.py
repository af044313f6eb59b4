#!/usr/bin/python3
"""The canonical form of a request against an oracle written from its description.

libFuzzer runs inside a backend of its own, a single-user server, because the
form is made of a jsonb and its numerics: once in a UTF8 database, where a
document is hashed as it lies, and once in LATIN1, where its keys are sorted
anew.  FUZZ_INPUT=HEX runs one input instead, as a failed run prints it.
"""

import glob
import os
import subprocess
import sys

sys.path.insert(1, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "stress"))
from lib import tap  # noqa: E402
from pure import HERE, SRC, Workshop, input_of, verdict  # noqa: E402

RUNS = 80_000           # for each encoding
LONG_RUNS = 20_000_000
LONGEST = 400           # bytes of an input

PARTS = os.path.join(HERE, "fingerprint")
SEEDS = os.path.join(PARTS, "corpus")
MINE = [os.path.join(PARTS, name) for name in ("backend.c", "document.c", "canonical.c")]


def output_of(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def runtime(name):
    """A library of clang's; where it is differs between versions."""
    root = output_of("clang", "-print-resource-dir")
    found = glob.glob(f"{root}/lib/*/libclang_rt.{name}-{os.uname().machine}.a") + \
        glob.glob(f"{root}/lib/*/libclang_rt.{name}.a")
    return found[0]


def compile_module(shop):
    """The module.  Undefined behaviour traps, which needs no library in the backend."""
    pg_config = os.environ.get("FUZZ_PG_CONFIG", "pg_config")
    headers = output_of(pg_config, "--includedir-server")
    flags = ["-fsanitize-coverage=inline-8bit-counters,indirect-calls,trace-cmp,pc-table",
             "-fsanitize=undefined", "-fsanitize-trap=undefined", "-fPIC", f"-isystem{headers}",
             "-D_GNU_SOURCE", f"-I{PARTS}", "-Wno-unused-parameter", "-c"]
    tested = shop.compile("tested.o", [os.path.join(SRC, "fingerprint.c")], *flags,
                          "-Dpg_cryptohash_update=see_hashed")
    mine = [shop.compile(os.path.basename(source) + ".o", [source], *flags) for source in MINE]
    objects = [tested, *mine]
    if None in objects:
        return None
    return shop.compile("fingerprint.so", [*objects, runtime("fuzzer_no_main"), "-lstdc++", "-lm"],
                        "-shared")


class Backend:
    """A cluster for single-user servers."""

    def __init__(self, shop):
        self.data = os.path.join(shop.path, "data")
        output_of("initdb", "-D", self.data, "-U", "postgres", "-A", "trust", "-N", "-E", "UTF8",
                  "--locale=C", "--no-instructions")
        self.run("postgres", "CREATE DATABASE latin1 ENCODING LATIN1 LOCALE 'C' TEMPLATE template0")

    def run(self, database, *statements):
        return subprocess.run(["postgres", "--single", "-F", "-D", self.data, database],
                              input="\n".join(statements) + "\n",
                              capture_output=True, text=True, errors="replace", check=False)


def fuzz(backend, shop, module, database, arguments):
    quoted = ", ".join("'" + argument + "'" for argument in arguments)
    return backend.run(database,
                       f"CREATE FUNCTION run_fuzzer(text[]) RETURNS int LANGUAGE C AS '{module}'",
                       f"SELECT run_fuzzer(ARRAY[{quoted}])")


def main():
    tap.begin()
    with Workshop() as shop:
        module = compile_module(shop)
        if module:
            test(shop, module)
    tap.finish()


def test(shop, module):
    backend = Backend(shop)
    runs = tap.scaled(LONG_RUNS if os.environ.get("TEST_LONG") else RUNS)
    arguments = shop.arguments(runs, SEEDS, LONGEST)
    if input_of():
        runs = 1
        arguments = [os.path.join(shop.path, "input")]
        with open(arguments[0], "wb") as file:
            file.write(input_of())
    for database in ("postgres", "latin1"):
        ran = fuzz(backend, shop, module, database, arguments)
        verdict(f"{database}, from {len(glob.glob(SEEDS + '/*'))} seeds", runs,
                ran.stdout + ran.stderr, ran.returncode, shop.path)


if __name__ == "__main__":
    main()
