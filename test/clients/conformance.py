#!/usr/bin/python3
"""One scenario through every driver, in every way that the driver has of calling.

The way that suits a pooler in transaction mode is tried behind one as well.
What is called and what must come of it is told in scenario.json; a runner per
driver says what did.  Each row of the scenario, by each driver, is one
assertion: it holds if it holds in all of the driver's ways.

    test/clients/conformance.py [--update]

CLIENTS="pg pdo" runs these drivers only.  --update writes the tables of
docs/languages.md, which must agree with what was found here.
"""

import sys

import psycopg

from lib import document, languages, scenario, tap
from lib.pooler import Pooler

SETUP = "CREATE TABLE IF NOT EXISTS effect (flow text, key text, language text, pid int)"


def try_driver(driver, rows, pooler):
    """What is wrong with each row, by way; and the classes seen of each type."""
    problems = {row["row"]: [] for row in rows}
    classes = {}
    for way, name, address in (*((way, way, {}) for way in driver.ways),
                               (driver.pooled, "behind a pooler", pooler.address)):
        run = scenario.Run(rows, f"{driver.name}, {name}", driver)
        status, printed, complaint = driver.run("runner", way, given=run.lines(), address=address)
        for row, wrong, seen in run.judge(printed):
            problems[row] += [f"{name}: {problem}" for problem in wrong]
            for kind, class_name in seen:
                classes.setdefault(kind, set()).add(class_name)
        if status != 0:
            problems[rows[-1]["row"]].append(f"{name}: status {status}: {complaint[-2000:]}")
    return problems, classes


def main():
    rows = scenario.load()
    found = {}
    with psycopg.connect("", autocommit=True) as db:
        db.execute(SETUP)
    with Pooler() as pooler:
        for driver in languages.chosen():
            complaint = driver.build()
            if not tap.ok(complaint is None, f"{driver.name} is built", [complaint]):
                continue
            problems, classes = try_driver(driver, rows, pooler)
            for row, wrong in problems.items():
                tap.ok(not wrong, f"{driver.name}: {row}", wrong)
            found[driver.name] = (problems, classes)
    document.check_tables(rows, found, update="--update" in sys.argv)
    tap.finish()


if __name__ == "__main__":
    main()
