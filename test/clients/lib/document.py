"""docs/languages.md: its tables are what was found, its programs those that run.

The tables stand between marks, which are comments:

    <!-- table: conformance -->
    ...
    <!-- end -->

A driver's section has its title as the heading, a fenced block that is its
program to copy, and a point for each of its traps, which begins with the
trap's title in bold.  A title that begins with dots belongs to the one before.
"""

import pathlib
import re

from lib import languages, scenario, tap

PATH = pathlib.Path(__file__).resolve().parents[3] / "docs" / "languages.md"

TABLE = "<!-- table: {} -->\n"
END = "<!-- end -->\n"
POINT = re.compile(r"^- \*\*(.+?)\.?\*\*", re.MULTILINE)

KINDS = ("text", "integer", "bigint", "boolean", "uuid", "bytea", "jsonb", "interval",
         "timestamptz", "text[]")


def check_tables(rows, found, update):
    """Are the tables those of a run, the versions of the drivers apart?  found is, by
    driver, its problems by row and the classes of its values by type."""
    tables = {"conformance": conformance(rows, found), "values": values(found),
              "drivers": drivers(found)}
    tap.note(tables["conformance"])
    text = PATH.read_text(encoding="utf-8")
    for name, table in tables.items():
        begin, end = _place(text, name)
        if update:
            text = text[:begin] + table + text[end:]
        elif len(found) == len(languages.DRIVERS):
            same = _comparable(text[begin:end], name) == _comparable(table, name)
            tap.ok(same, f"docs/languages.md: table {name}", table.splitlines())
    if update:
        PATH.write_text(text, encoding="utf-8")


def _place(text, name):
    begin = text.index(TABLE.format(name)) + len(TABLE.format(name))
    return begin, text.index(END, begin)


def _comparable(table, name):
    """Versions differ between machines."""
    lines = table.splitlines()
    if name == "drivers":
        lines = [line.split("|")[:2] + line.split("|")[3:] for line in lines]
    return lines


def _table(head, lines):
    return "".join("| " + " | ".join(cells) + " |\n"
                   for cells in [head, ["---"] * len(head), *lines])


def conformance(rows, found):
    tested = [driver for driver in languages.DRIVERS if driver.name in found]
    lines = [[_escaped(row["row"]), *(_verdict(row, driver, found) for driver in tested)]
             for row in rows]
    return _table(["", *found], lines)


def _verdict(row, driver, found):
    problems, _ = found[driver.name]
    if problems[row["row"]]:
        return "✗"
    return "(✓)" if scenario.limited(row, driver) else "✓"


def values(found):
    """What a value of each type is in the program; where that depends on the way, all of it."""
    lines = [[f"`{kind}`", *(_classes(classes, kind) for _, classes in found.values())]
             for kind in KINDS]
    return _table(["", *found], lines)


def _classes(classes, kind):
    return ", ".join(f"`{_escaped(name)}`" for name in sorted(classes.get(kind, ())))


def _escaped(text):
    return text.replace("|", "\\|").replace("*", "\\*") if "`" not in text else text


def drivers(found):
    lines = [[driver.title, driver.its_version(), ", ".join(driver.ways), driver.pooled]
             for driver in languages.DRIVERS if driver.name in found]
    return _table(["Driver", "Version", "Ways of calling", "Behind a pooler"], lines)


def _section(text, driver):
    """Where the driver's section begins and ends."""
    heading = f"\n## {driver.title}\n"
    begin = text.index(heading) + len(heading)
    end = text.find("\n## ", begin)
    return begin, end if end >= 0 else len(text)


def check_program(driver, update):
    """Does its section show the program, as it is?"""
    text = PATH.read_text(encoding="utf-8")
    begin, end = _section(text, driver)
    program = driver.source("snippet").read_text(encoding="utf-8")
    fence = f"```{driver.language}\n"
    if update:
        first = text.index(fence, begin, end) + len(fence)
        last = text.index("```\n", first)
        PATH.write_text(text[:first] + program + text[last:], encoding="utf-8")
    else:
        tap.ok(f"{fence}{program}```\n" in text[begin:end],
               f"docs/languages.md shows the program of {driver.name}")


def check_traps(driver, shown):
    """Does its section tell of these, in this order?"""
    text = PATH.read_text(encoding="utf-8")
    begin, end = _section(text, driver)
    told = POINT.findall(text[begin:end])
    shown = [title for title in shown if not title.startswith("...")]
    tap.ok(told == shown, f"docs/languages.md tells the traps of {driver.name}",
           [f"told: {told}", f"shown: {shown}"])
