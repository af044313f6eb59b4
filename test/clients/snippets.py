#!/usr/bin/python3
"""The programs to copy: all of them print the same, and docs/languages.md shows them.

    test/clients/snippets.py [--update]

CLIENTS="pg pdo" runs those of these drivers only.  --update writes them into
the document.
"""

import sys

import psycopg

from lib import document, languages, tap

SETUP = """
DROP TABLE IF EXISTS orders, payments;
CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY, customer text, item text);
CREATE TABLE payments (key text, charge text, amount int);
TRUNCATE idem_record;
"""
EFFECTS = """SELECT (SELECT count(*) FROM orders), (SELECT count(*) FROM payments),
                    (SELECT count(*) FROM idem_record WHERE state = 'succeeded')"""

PRINTED = '201 {"order": 1}\n201 {"charge":"ch_500"}\n' * 2


def main():
    with psycopg.connect("", autocommit=True) as db:
        for driver in languages.chosen():
            complaint = driver.build()
            if not tap.ok(complaint is None, f"{driver.name} is built", [complaint]):
                continue
            db.execute(SETUP)
            status, printed, complaint = driver.run("snippet")
            tap.ok(status == 0 and printed == PRINTED, f"{driver.name}: the program to copy",
                   [status, printed, complaint])
            effects = db.execute(EFFECTS).fetchone()
            tap.ok(effects == (1, 1, 2), f"{driver.name}: has each effect once", [effects])
            document.check_program(driver, update="--update" in sys.argv)
    tap.finish()


if __name__ == "__main__":
    main()
