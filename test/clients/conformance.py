#!/usr/bin/python3
"""One scenario through every driver, in every way that the driver has of calling.

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

SETUP = "CREATE TABLE IF NOT EXISTS effect (flow text, key text, language text, pid int)"


def try_driver(driver, rows):
    """What is wrong with each row, by way; and the classes seen of each type."""
    problems = {row["row"]: [] for row in rows}
    classes = {}
    for way in driver.ways:
        run = scenario.Run(rows, f"{driver.name}/{way}", driver.resolution)
        status, printed, complaint = driver.run("runner", way, given=run.lines())
        for row, wrong, seen in run.judge(printed):
            problems[row] += [f"{way}: {problem}" for problem in wrong]
            for kind, name in seen:
                classes.setdefault(kind, {}).setdefault(name, []).append(way)
        if status != 0:
            problems[rows[-1]["row"]].append(f"{way}: status {status}: {complaint[-2000:]}")
    return problems, classes


def main():
    rows = scenario.load()
    found = {}
    with psycopg.connect("", autocommit=True) as db:
        db.execute(SETUP)
    for driver in languages.chosen():
        complaint = driver.build()
        if not tap.ok(complaint is None, f"{driver.name} is built", [complaint]):
            continue
        problems, classes = try_driver(driver, rows)
        for row, wrong in problems.items():
            tap.ok(not wrong, f"{driver.name}: {row}", wrong)
        found[driver.name] = (problems, classes)
    document.check_tables(rows, found, update="--update" in sys.argv)
    tap.finish()


if __name__ == "__main__":
    main()
