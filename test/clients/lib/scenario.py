"""The scenario: what is called, with what, and what must come of it.

scenario.json tells it once, for all drivers.  A row has a title, which is a
line of the table in docs/languages.md, and steps in order:

    {"do": "begin"}     begin, commit, rollback, savepoint or rollback to
                        savepoint, by the driver's own call where it has one;
                        a commit may have an "error"
    {"sql": "SELECT f($1, $2)",
     "with": ["text=a", null],          parameters, each by type and value
     "as": ["uuid>token", "text"],      columns by type; > keeps the value
     "gives": [["*", "=1"]]}            rows
    {... "error": "22023", "column": "key"}
                        instead of rows: SQLSTATE and column field

Values are written as text, whatever the driver makes of them:

    text, untyped       as they are; a driver passes untyped ones without a type
    integer, bigint     digits
    boolean             t, f
    bytea               hexadecimal
    uuid                as PostgreSQL writes it
    jsonb               the document; results are compared as documents
    interval            microseconds
    timestamptz         microseconds since 1970
    text[]              elements, between |

In "with", @name is a value that an earlier step kept, or one of MACROS.  In
"gives", * is anything but NULL and =2 the value of column 2.

A runner is given the steps and prints what happened in lines of fields
between tabs, so that one in any language needs no more than a few lines to
read and write them.  In a line %XX is a byte, as in a URL:

    in      number, do ("query" for SQL), SQL, parameters, columns; of the
            last two each is type=value (or "null") and type or type>name,
            between spaces; a value kept is type=@name
    out     number, "ok", rows, their values between spaces, each as
            class=value or "null"; class is what the driver calls it
    out     number, "error", SQLSTATE, column field
"""

import json
import pathlib
from urllib.parse import quote, unquote

PATH = pathlib.Path(__file__).resolve().parent.parent / "scenario.json"

MACROS = {
    "@all": bytes(range(256)).hex(),
    "@large": "x" * 5000,
    "@long": "k" * 256,
}


def load():
    return json.loads(PATH.read_text(encoding="utf-8"))


def encode(text):
    return quote(text, safe="")


class Run:
    """The scenario for one runner; its records are under a scope of their own."""

    def __init__(self, rows, scope, driver):
        self.rows = rows
        self.macros = {**MACROS, "@scope": scope}
        self.driver = driver
        self.steps = [step for row in rows for step in row["do"]]

    def lines(self):
        """What the runner is given."""
        kept = {f"@{column.partition('>')[2]}" for step in self.steps
                for column in step.get("as", ()) if ">" in column}
        return "".join(self._line(number, step, kept)
                       for number, step in enumerate(self.steps))

    def _line(self, number, step, kept):
        if "do" in step:
            fields = [step["do"], "", "", ""]
        else:
            fields = ["query", encode(step["sql"]),
                      " ".join(self._parameter(p, kept) for p in step["with"]),
                      " ".join(step["as"])]
        return "\t".join([str(number), *fields]) + "\n"

    def _parameter(self, parameter, kept):
        if parameter is None:
            return "null"
        kind, _, value = parameter.partition("=")
        if value in kept:
            return f"{kind}={value}"
        if kind == "text[]":
            return f"{kind}=" + "|".join(encode(item) for item in value.split("|") if value)
        return f"{kind}=" + encode(self.macros.get(value, value))

    def judge(self, printed):
        """(row, what is wrong with it or "", the classes seen) of what was printed."""
        said = dict(line.split("\t", 1) for line in printed.splitlines() if "\t" in line)
        number = 0
        for row in self.rows:
            wrong, classes = [], set()
            for step in row["do"]:
                problem = self._problem(step, said.get(str(number)), classes)
                if problem:
                    wrong.append(f"{step.get('sql') or step['do']}: {problem}")
                number += 1
            yield row["row"], wrong, classes

    def _problem(self, step, line, classes):
        if line is None:
            return "nothing was said of it"
        how, *fields = line.split("\t")
        if "error" in step:
            return self._error_problem(step, how, fields)
        if how != "ok":
            return f"error {' '.join(map(unquote, fields))}"
        if "do" in step:
            return ""
        rows = [field.split(" ") for field in fields]
        if len(rows) != len(step["gives"]):
            return f"{len(rows)} rows, not {len(step['gives'])}: {fields}"
        kinds = [column.partition(">")[0] for column in step["as"]]
        for have, want in zip(rows, step["gives"]):
            values = self._values(have, kinds, classes)
            for place, (value, wanted) in enumerate(zip(values, want, strict=True)):
                if not self._same(value, wanted, kinds[place], values):
                    return f"column {place + 1} is {value!r}, not {wanted!r}"
        return ""

    def _error_problem(self, step, how, fields):
        if how != "error":
            return f"no error, but {how} {fields}"
        state, column = (*map(unquote, fields), "", "")[:2]
        if state != step["error"]:
            return f"SQLSTATE {state}, not {step['error']} ({column})"
        if self.driver.column_field and column != (step["column"] or ""):
            return f"column {column!r}, not {step['column']!r}"
        return ""

    @staticmethod
    def _values(fields, kinds, classes):
        values = []
        for field, kind in zip(fields, kinds, strict=True):
            if field == "null":
                values.append(None)
                continue
            name, _, value = field.partition("=")
            classes.add((kind, unquote(name)))
            values.append(value if kind == "text[]" else unquote(value))
        return values

    def _same(self, value, wanted, kind, values):
        if value is None or wanted is None:
            return value is wanted
        if wanted == "*":
            return True
        if wanted.startswith("="):
            wanted = values[int(wanted[1:]) - 1]
        wanted = self.macros.get(wanted, wanted)
        if kind == "jsonb":
            return _document(value) == _document(wanted)
        if kind == "timestamptz":
            return value.isdigit() and 0 <= int(wanted) - int(value) < self.driver.resolution
        if kind == "text[]":
            return [unquote(item) for item in value.split("|")] == wanted.split("|")
        return value == wanted


def limited(row, driver):
    """Is less asked of this driver, which cannot do better?"""
    return any((driver.resolution > 1 and step.get("gives") == [["=2", "*"]])
               or (not driver.column_field and step.get("column"))
               for step in row["do"])


def _document(text):
    """Compared without taking 1 for 1.0 or for true."""
    try:
        return json.dumps(json.loads(text), sort_keys=True)
    except ValueError:
        return f"not JSON: {text}"
