#!/usr/bin/python3
"""What is odd about each driver: shown by a program, told in docs/languages.md.

A driver's program prints one line of TAP per trap; the same titles, in bold,
begin the points of the driver's section.  CLIENTS="pg pdo" shows these only.
"""

import psycopg

from lib import document, languages, tap


def main():
    db = psycopg.connect("", autocommit=True)
    for driver in languages.chosen():
        db.execute("TRUNCATE idem_record")
        complaint = driver.build()
        if not tap.ok(complaint is None, f"{driver.name} is built", [complaint]):
            continue
        status, printed, complaint = driver.run("traps")
        shown = []
        for line in printed.splitlines():
            how, _, title = line.partition(" - ")
            shown.append(title)
            tap.ok(how == "ok", f"{driver.name}: {title}", [complaint])
        tap.ok(status == 0, f"{driver.name}: the program ends well", [status, complaint])
        document.check_traps(driver, shown)
    tap.finish()


if __name__ == "__main__":
    main()
