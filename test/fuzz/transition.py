#!/usr/bin/python3
"""The decision of the protocol against an oracle that was written from the manual.

First every record, request and clock that can make a difference, then libFuzzer
with any at all; both under the address and undefined behaviour sanitizers.
FUZZ_INPUT=HEX runs one input instead, as a failed run prints it.
"""

import glob
import os
import subprocess
import sys

sys.path.insert(1, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "stress"))
from lib import tap  # noqa: E402
from pure import HERE, SANITIZERS, SRC, Workshop, input_of, verdict  # noqa: E402

RUNS = 2_000_000
LONG_RUNS = 200_000_000
LONGEST = 300           # bytes of an input; no more of it is read
LEAST_CASES = 1_000_000

PARTS = os.path.join(HERE, "transition")
SOURCES = [os.path.join(PARTS, "oracle.c"), os.path.join(SRC, "transition.c")]


def run(program, *arguments):
    return subprocess.run([program, *arguments], capture_output=True, text=True,
                          errors="replace", check=False)


def every_case(shop):
    program = shop.compile("every", [os.path.join(PARTS, "every.c"), *SOURCES],
                           f"-fsanitize={SANITIZERS}")
    if program is None:
        return
    ran = run(program)
    cases = int(ran.stdout.split()[0]) if ran.returncode == 0 else 0
    tap.ok(cases >= LEAST_CASES, f"every case: {cases} of them",
           (ran.stdout + ran.stderr).splitlines())


def any_case(shop):
    program = shop.compile("any", [os.path.join(PARTS, "fuzz.c"), *SOURCES],
                           f"-fsanitize=fuzzer,{SANITIZERS}")
    if program is None:
        return
    runs = tap.scaled(LONG_RUNS if os.environ.get("TEST_LONG") else RUNS)
    if input_of():
        runs = 1
        with open(os.path.join(shop.path, "input"), "wb") as file:
            file.write(input_of())
        ran = run(program, file.name)
        tap.ok(ran.returncode == 0, "the input", (ran.stdout + ran.stderr).splitlines())
        return
    seeds = os.path.join(PARTS, "corpus")
    ran = run(program, *shop.arguments(runs, seeds, LONGEST))
    verdict(f"any case, from {len(glob.glob(seeds + '/*'))} seeds", runs,
            ran.stdout + ran.stderr, ran.returncode, shop.path)


def main():
    tap.begin()
    with Workshop() as shop:
        every_case(shop)
        any_case(shop)
    tap.finish()


if __name__ == "__main__":
    main()
