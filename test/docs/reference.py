"""Does the reference in the README say what the catalog says?

Each function has a heading with its name and a table of its arguments, each
setting a line in the table of settings.  A function, an argument or a setting
that is missing, misspelt or out of order is a fault, and so is a default that
is not the one in force.  Where a setting stands for an argument's default,
the argument's own is NULL.
"""
import re

HEADING = re.compile(r"^#### (idem_\w+)")
ARGUMENT = re.compile(r"^\| `(\w+)` \| `([^`]+)` \| ([^|]+) \|")
SETTING = re.compile(r"^\| `(idempotency\.\w+)` \| `([^`]+)` \|")

# The arguments that go in, in order, with their types and defaults.
ARGUMENTS = r"""
SELECT p.proname || ' ' || coalesce((
    SELECT string_agg(a.name || ' ' || format_type(a.type, NULL) || ' ' ||
        coalesce(regexp_replace(regexp_replace(
            pg_get_function_arg_default(p.oid, a.n::int), '::[a-z ]+$', ''),
            '^''(.+)''$', '\1'), 'required'), ', ' ORDER BY a.n)
    FROM unnest(coalesce(p.proallargtypes, p.proargtypes::oid[]), p.proargnames,
                p.proargmodes) WITH ORDINALITY AS a (type, name, mode, n)
    WHERE coalesce(a.mode, 'i') = 'i'), '')
FROM pg_depend d JOIN pg_proc p ON p.oid = d.objid
WHERE d.classid = 'pg_proc'::regclass AND d.refclassid = 'pg_extension'::regclass
    AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'idempotency')
    AND p.prorettype <> 'trigger'::regtype  -- which nobody can call
ORDER BY 1
"""

# Loading the library is what makes its settings known.
SETTINGS = """
DO $$ BEGIN PERFORM idem_lookup('docs', 'docs'); END $$;
SELECT name || ' ' || current_setting(name) FROM pg_settings
WHERE name LIKE 'idempotency.%' ORDER BY 1
"""


def documented_arguments(document):
    """{function: "name type default, ..."} of the README."""
    found, function = {}, None
    for _, line in document.prose:
        heading = HEADING.match(line)
        if line.startswith("#"):
            function = heading[1] if heading else None
            if function:
                found[function] = []
        argument = ARGUMENT.match(line)
        if function and argument:
            name, kind, default = argument.groups()
            default = default.strip("`")
            if default.startswith("idempotency."):
                default = "NULL"
            found[function].append(f"{name} {kind} {default}")
    return {name: ", ".join(arguments) for name, arguments in found.items()}


def documented_settings(document):
    return dict(found.groups() for _, line in document.prose
                if (found := SETTING.match(line)))


def catalog(query):
    """{first word: the rest} of the lines that the server answers."""
    return dict(line.split(" ", 1) for line in query.splitlines() if line)


def differences(documented, actual):
    for name in sorted(documented.keys() | actual.keys()):
        if documented.get(name) != actual.get(name):
            yield (f"{name}: the README says {documented.get(name)!r}, "
                   f"the server {actual.get(name)!r}")
