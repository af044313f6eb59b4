#!/usr/bin/python3
"""All drivers at once on the same keys, directly and through a pooler.

Each driver's runner claims every key several times, in an order of its own, by
two flows.  "transactional": claim, effect and finish in one transaction.
"leased": claim; an effect on its own, which stands for one outside of the
database; then an effect and the finish in one transaction.  Of these the first
waits a little for a claim in flight, the second does not; what was in progress
is claimed again later.  The answer tells who gave it.

In the end each key has one effect of each kind, and all that any driver was
told of a key, by its own work or by a replay, is the same, byte for byte.

    CLIENTS_SEED    the seed of the orders; printed; given again it makes the
                    same ones, though a race may still end differently
    CLIENTS_SCALE   multiplies the number of keys
    CLIENTS         only these drivers, between spaces
"""

import collections
import random
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import unquote

import psycopg

from lib import languages, tap
from lib.pooler import SESSIONS, Pooler

KEYS = tap.scaled(200)                  # of each flow
TIMES = 3                               # each driver claims each key
HOT = 10                                # keys of each flow that all are at, more or less

SCOPES = {"transactional": "race", "leased": "leased race"}
KINDS = ("transactional", "outside", "leased")

SETUP = """
CREATE TABLE IF NOT EXISTS effect (flow text, key text, language text, pid int);
TRUNCATE effect, idem_record;
"""
CONNECTED = """SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
               AND backend_type = 'client backend' AND pid <> pg_backend_pid()"""


def turns(rng, number):
    """(flow, key): some keys in any order, then the next.

    All drivers are at the first half together.  The second they begin in pairs, each
    elsewhere: or the fastest would have claimed every key before the slowest has sent
    its first statement.
    """
    firsts = list(range(0, KEYS, HOT))
    half = (len(firsts) + 1) // 2
    begin = half + number // 2 * (len(firsts) - half) // 5
    for first in firsts[:half] + firsts[begin:] + firsts[half:begin]:
        some = [(flow, f"k-{n}") for flow in SCOPES for n in range(first, min(first + HOT, KEYS))]
        some *= TIMES
        rng.shuffle(some)
        yield from some


class Racer:
    """One driver's runner, and what it said."""

    def __init__(self, driver, number, course, address):
        self.driver = driver
        self.turns = list(turns(random.Random(f"{tap.SEED}/{course}/{driver.name}"), number))
        self.process = driver.start("runner", driver.pooled, driver.name, address=address)
        self.outcomes = collections.Counter()
        self.answers = []               # (flow, key, body)
        self.problems = []

    def run(self):
        """It begins when it has read all that it is to do."""
        given = "".join(f"{flow}\t{key}\n" for flow, key in self.turns)
        printed, complaint = self.process.communicate(given, timeout=languages.PATIENCE)
        if self.process.returncode:
            self.problems.append(f"status {self.process.returncode}: {complaint[-3000:]}")
        done = collections.Counter()
        for line in printed.splitlines():
            flow, key, outcome, body = line.split("\t")
            self.outcomes[outcome] += 1
            if outcome in ("claimed", "replayed"):
                done[flow, key] += 1
                self.answers.append((flow, key, unquote(body)))
            elif outcome != "in_progress":
                self.problems.append(line)
        if done != collections.Counter(self.turns):
            self.problems.append(f"{done.total()} of {len(self.turns)} turns done")


def start_together(racers, connected):
    """All have connected before the first may begin."""
    patience = time.monotonic() + languages.PATIENCE
    while connected() < len(racers):
        for racer in racers:
            if racer.process.poll() is not None:
                raise RuntimeError(f"{racer.driver.name}: {racer.process.stderr.read()}")
        if time.monotonic() > patience:
            raise RuntimeError(f"{connected()} of {len(racers)} have connected")
        time.sleep(0.05)
    with ThreadPoolExecutor(len(racers)) as pool:
        for done in [pool.submit(racer.run) for racer in racers]:
            done.result()


def check_effects(db, course):
    """Each kind of effect once per key."""
    have = dict(db.execute("SELECT (flow, key)::text, count(*) FROM effect GROUP BY 1").fetchall())
    want = {f"({kind},k-{n})": 1 for kind in KINDS for n in range(KEYS)}
    tap.ok(have == want, f"{course}: each key has one effect of each kind",
           sorted(set(have.items()) ^ set(want.items()))[:10])


def check_answers(db, course, racers):
    stored = {(flow, key): body for flow, scope in SCOPES.items() for key, body in db.execute(
        "SELECT key, response_body FROM idem_record WHERE scope = %s AND state = 'succeeded'",
        (scope,))}
    wrong = [f"{racer.driver.name} of {flow} {key}: {body!r}, not {stored.get((flow, key))!r}"
             for racer in racers for flow, key, body in racer.answers
             if body != stored.get((flow, key))]
    tap.ok(len(stored) == len(SCOPES) * KEYS and not wrong,
           f"{course}: every answer of every driver is the stored one, byte for byte", wrong[:10])
    authors = db.execute("SELECT flow, key, format('%s by %s, %s \N{TEAPOT}', key,"
                         " language, pid) FROM effect WHERE flow <> 'outside'").fetchall()
    wrong = [f"{flow} {key}: {body!r}, not {stored.get((flow, key))!r}"
             for flow, key, body in authors if body != stored.get((flow, key))]
    tap.ok(not wrong, f"{course}: and names the one whose effect it is", wrong[:10])


def show_figures(course, racers, seconds):
    total = collections.Counter()
    tap.note(f"{course}: {len(racers)} drivers, {len(SCOPES) * KEYS} keys, {seconds:.1f} s")
    for racer in racers:
        total += racer.outcomes
        tap.note(f"  {racer.driver.name:10}" + figures(racer.outcomes))
    tap.note(f"  {'together':10}" + figures(total))
    claimed = total["claimed"]
    tap.ok(claimed == len(SCOPES) * KEYS, f"{course}: each key was claimed once", [claimed])


def figures(outcomes):
    return "".join(f" {outcomes[name]:6} {name}" for name in ("claimed", "replayed", "in_progress"))


def race(course, drivers, address, connected):
    with psycopg.connect("", autocommit=True) as db:
        db.execute(SETUP)
        racers = [Racer(driver, number, course, address) for number, driver in enumerate(drivers)]
        try:
            start_together(racers, connected or (lambda: db.execute(CONNECTED).fetchone()[0]))
        finally:
            for racer in racers:
                racer.process.kill()
        started = db.execute("SELECT min(created_at), max(finished_at) FROM idem_record").fetchone()
        for racer in racers:
            tap.ok(not racer.problems, f"{course}: {racer.driver.name} does all its turns",
                   racer.problems)
        show_figures(course, racers, (started[1] - started[0]).total_seconds())
        check_effects(db, course)
        check_answers(db, course, racers)


def main():
    tap.begin()
    drivers = []
    for driver in languages.chosen():
        complaint = driver.build()
        if tap.ok(complaint is None, f"{driver.name} is built", [complaint]):
            drivers.append(driver)
    race("directly", drivers, {}, None)
    with Pooler() as pooler:
        race(f"through a pooler with {SESSIONS} sessions", drivers, pooler.address, pooler.clients)
    tap.finish()


if __name__ == "__main__":
    main()
