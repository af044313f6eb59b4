#!/usr/bin/python3
"""Every state that the protocol can get into, visited by spin.

The model is protocol.pml; README.md tells how it maps to the code.  Here it
is searched: exhaustively, in configurations that together visit at least 20
million states; beside transition.c, so that model and code decide alike; and
in mutants, each of which must be caught by the invariant that is there for it.
"""

import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parents[1] / "src"
sys.path.insert(0, str(HERE.parent / "stress"))

from lib import tap                                         # noqa: E402

LEAST_STATES = 20_000_000
LONG = os.environ.get("TEST_LONG") == "yes"

DEPTH = 20_000                  # of the search; running out of it is an error


def config(clients, tries, operations, until, lease=1, ttl=2, stranger=0):
    return {"CLIENTS": clients, "TRIES": tries, "OPERATIONS": operations, "UNTIL": until,
            "LEASE": lease, "TTL": ttl, "STRANGER": stranger}


# What is searched exhaustively.
SEARCHES = {
    "a client that tries twice, and an operator": config(1, 2, 1, 3),
    "two clients": config(2, 1, 0, 2),
    "two clients with different requests": config(2, 1, 0, 2, stranger=2),
}
LONG_SEARCHES = {
    "two clients, and time for a ttl to pass": config(2, 1, 0, 3),
    "two clients under a lease longer than the ttl": config(2, 1, 0, 3, lease=3),
}
CONFORM = config(1, 1, 1, 3), config(2, 1, 0, 1, stranger=2)

# Mutant -> invariants of which one must catch it, and where.
ONE, TWO, OPERATED = config(1, 2, 0, 3), config(2, 1, 0, 2), config(1, 1, 1, 3)
MUTANTS = {
    "NO_FENCE": ("only_owner_writes", TWO),
    "TOKEN_REUSED": ("only_owner_writes", TWO),
    "TAKEOVER_KEEPS_TOKEN": ("only_owner_writes", OPERATED),
    "SWEEP_IGNORES_LEASE": ("one_owner", config(1, 1, 0, 3, lease=3)),
    "SWEEP_IGNORES_STATE": ("unknown_stays effect_once", ONE),
    "SWEEP_NO_RECHECK": ("one_owner answer_kept", TWO),
    "FROZEN_CLOCK": ("by_the_clock", TWO),
    "NO_RECHECK": ("one_owner", TWO),
    "UNKNOWN_KEEPS_RETRY": ("unknown_stays", config(1, 2, 1, 3)),
    "UNKNOWN_EXPIRES": ("unknown_stays effect_once", ONE),
    "RECLAIM_UNKNOWN": ("unknown_stays effect_once", TWO),
    "CLAIM_IGNORES_LEASE": ("one_owner", TWO),
    "TAKEOVER_IGNORES_LEASE": ("one_owner", OPERATED),
    "REPEAT_AFTER_PROGRESS": ("effect_once", ONE),
    "FINISH_AGAIN": ("all_or_nothing", ONE),
    "FINISH_KEEPS_EXPIRY": ("answer_kept", ONE),
    "RELEASE_KEEPS_LEASE": ("record_shape", ONE),
    "COMMIT_UNFINISHED": ("all_or_nothing", ONE),
    "ACT_BEFORE_COMMIT": ("effect_once", ONE),
}

# In transition.h, but not in the model, which README.md explains.
NOT_MODELLED = {"idem_decide_once", "IDEM_ONCE_FIRST", "IDEM_ONCE_SEEN", "IDEM_ONCE_CLAIMED",
                "IDEM_NEED_TOKEN", "idem_sweep_at", "same_token", "same_request"}


@dataclass
class Search:
    """What pan reported."""

    output: str

    def number(self, pattern):
        found = re.search(pattern, self.output)
        return int(float(found.group(1))) if found else -1

    @property
    def states(self):
        return self.number(r"(\S+) states, stored")

    @property
    def violated(self):
        """The name of the invariant, or what else ended the search, or None."""
        found = re.search(r"assertion violated \((\w+)\|\|", self.output)
        if found:
            return found.group(1)
        found = re.search(r"pan:1: (.*)|(conform: .*)", self.output)
        return found and found.group(0)

    @property
    def complete(self):
        """All states were visited, and none is missing for want of memory or depth."""
        return (self.number(r"errors: (\d+)") == 0 and self.states > 0
                and not re.search(r"not completed|too small|out of memory", self.output))

    @property
    def unreached(self):
        """The statements that never ran, by their place in protocol.pml."""
        return set(re.findall(r"protocol\.pml:\d+, state \d+, \"(?!-end-)[^\n]*", self.output))


def search(constants, *flags, conform=False, optimize="-O2"):
    """Search the model with these constants, in a directory of its own."""
    with tempfile.TemporaryDirectory() as directory:
        def run(*command):
            subprocess.run(command, cwd=directory, check=True, stdout=subprocess.DEVNULL)

        defines = [f"-D{name}={value}" for name, value in constants.items()]
        run("cp", str(HERE / "protocol.pml"), ".")
        run("spin", *defines, *(f"-D{flag}" for flag in flags), "-a", "protocol.pml")
        sources = [str(HERE / "conform.c"), str(SOURCE / "transition.c")] if conform else []
        run("gcc", optimize, "-w", "-DSAFETY", "-DNOFAIR", "-DVECTORSZ=1024", f"-I{SOURCE}",
            f"-DTTL={constants['TTL']}", f"-DLEASE={constants['LEASE']}", "-o", "pan", "pan.c",
            *sources)
        result = subprocess.run(["./pan", f"-m{DEPTH}", "-w24"], cwd=directory, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        return Search(result.stdout)


def shown(found):
    return [found.violated or "the search was not complete", *found.output.splitlines()[-12:]]


def check_names():
    header, code = ((SOURCE / f"transition.{end}").read_text() for end in "hc")
    names = set(re.findall(r"^\t(IDEM_[A-Z_]+),", header, re.M))
    names |= set(re.findall(r"^(\w+)\(", code, re.M))
    model = set(re.findall(r"\w+", (HERE / "protocol.pml").read_text()))
    missing = sorted(names - model - NOT_MODELLED)
    tap.none(missing, f"the {len(names - NOT_MODELLED)} states, verdicts and rules of transition.c"
             " bear the same names in the model")
    tap.none(sorted(NOT_MODELLED & model | NOT_MODELLED - names),
             "and what is not modelled is not there")


def check_conformance():
    for constants in CONFORM:
        found = search(constants, "CONFORM", conform=True)
        tap.ok(found.complete, f"transition.c decides like the model in {found.states} states",
               shown(found))


def check_searches():
    total, unreached = 0, []
    for name, constants in {**SEARCHES, **(LONG_SEARCHES if LONG else {})}.items():
        found = search(constants)
        tap.ok(found.complete, f"{name}: all invariants hold in {found.states} states",
               shown(found))
        total += found.states
        unreached.append(found.unreached)
    tap.ok(total >= LEAST_STATES, f"{total} states were visited, at least {LEAST_STATES}")
    tap.none(sorted(set.intersection(*unreached)), "every statement of the model was run")


def check_mutants():
    for name, (invariants, constants) in MUTANTS.items():
        found = search(constants, f"M_{name}", optimize="-O0")
        tap.ok(found.violated in invariants.split(),
               f"mutant {name} violates {found.violated or 'nothing'}", shown(found))
    used = set(re.findall(r"\bM_([A-Z_]+)", (HERE / "protocol.pml").read_text()))
    tap.equal(sorted(used), sorted(MUTANTS), "every mutant of the model was run")


def main():
    check_names()
    check_conformance()
    check_mutants()
    check_searches()
    tap.finish()


if __name__ == "__main__":
    main()
