"""The server under the calls: what they need there, and how it is after."""

import os
import re

SRC = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "src")
SOURCES = [name[:-2] for name in os.listdir(SRC) if name.endswith(".c")]

# Long values that lie in the table in each of the ways there are.
SETUP = """
CREATE TABLE odd (name text PRIMARY KEY, t text, j jsonb, b bytea);
ALTER TABLE odd ALTER t SET STORAGE EXTENDED, ALTER j SET STORAGE EXTENDED;
INSERT INTO odd VALUES
    ('compressed', repeat('long text ', 1000),
        (SELECT jsonb_object_agg('key ' || i, repeat('v', i)) FROM generate_series(1, 100) i),
        decode(repeat('00ff', 5000), 'hex')),
    ('thirty-two', 't', '{}', sha256('x'));
ALTER TABLE odd ALTER t SET STORAGE EXTERNAL, ALTER j SET STORAGE EXTERNAL, ALTER b SET STORAGE EXTERNAL;
INSERT INTO odd VALUES
    ('external', repeat('long text ', 1000), to_jsonb(repeat('x', 20000)), decode(repeat('ab', 9000), 'hex'));
CREATE TABLE orders (id int GENERATED ALWAYS AS IDENTITY, doc jsonb);
CREATE TABLE log (line text);
CREATE TABLE events (key text);
CREATE FUNCTION only_once() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RETURN CASE WHEN idem_once('events', new.key, ttl => '10 ms') THEN new END;
END $$;
CREATE TRIGGER only_once BEFORE INSERT ON events FOR EACH ROW EXECUTE FUNCTION only_once();
CREATE FUNCTION fuzz_token(scope text, key text, principal text) RETURNS uuid
    LANGUAGE sql SECURITY DEFINER SET search_path = public, pg_temp
    AS $$ SELECT coalesce((SELECT r.token FROM idem_record r
        WHERE (r.scope, r.key, r.principal) = ($1, $2, $3)), gen_random_uuid()) $$;
DROP ROLE IF EXISTS fuzz_client, fuzz_other;
CREATE ROLE fuzz_client LOGIN;
CREATE ROLE fuzz_other;
GRANT ALL ON odd, orders, log, events TO fuzz_client;
SELECT idem_grant('fuzz_client');
DO $$ BEGIN
    EXECUTE format('ALTER DATABASE %I SET deadlock_timeout = %L', current_database(), '10ms');
    EXECUTE format('ALTER DATABASE %I SET idempotency.ttl = %L', current_database(), '1 s');
    EXECUTE format('ALTER DATABASE %I SET idempotency.once_ttl = %L', current_database(), '1 s');
    EXECUTE format('ALTER DATABASE %I SET log_min_error_statement = panic', current_database());
END $$;
"""
TEARDOWN = """
DROP OWNED BY fuzz_client, fuzz_other;
DROP ROLE fuzz_client, fuzz_other;
"""

# What must not happen to any backend, and what a leak looks like.
ALARMS = re.compile("PANIC|TRAP|was terminated by signal|terminating any other active server processes"
                    "|WARNING: .*(leak|still referenced|refcount|not closed|corrupt)")


def sound(db):
    """Where the server stands: the same before and after if nothing broke."""
    return db.execute("""
        SELECT pg_postmaster_start_time(), sessions_fatal, sessions_killed,
            (SELECT count(*) FROM pg_prepared_xacts)
        FROM pg_stat_database WHERE datname = current_database()""").fetchone()


def log_position():
    path = log_path()
    return os.path.getsize(path) if path else None


def log_path():
    """script/test keeps the log beside the socket."""
    path = os.path.join(os.environ.get("PGHOST", ""), "server.log")
    return path if os.access(path, os.R_OK) else None


def _log_since(position):
    with open(log_path(), encoding="utf-8", errors="replace") as log:
        log.seek(position)
        return log.read().splitlines()


def alarms(position):
    return [line for line in _log_since(position) if ALARMS.search(line)]


OURS = re.compile(r"LOCATION: .*, (idempotency|" + "|".join(SOURCES) + r")\.c:")


def errors_raised(position):
    """How many the extension's own code raised.  The log must be verbose."""
    return sum(1 for line in _log_since(position) if OURS.search(line))


def internal_errors(position):
    """Those of them that are internal: the place is named on a line below the error."""
    found, last = [], None
    for line in _log_since(position):
        if "LOCATION:" not in line:
            last = line if ": XX00" in line else last
        else:
            if last and OURS.search(line):
                found.append(f"{last}\n{line}")
            last = None
    return found


# --- the table -----------------------------------------------------------------

def violations(db):
    """Rows that break a constraint of the table, by the constraint's name."""
    found = []
    constraints = db.execute("""
        SELECT conname, pg_get_expr(conbin, conrelid) FROM pg_constraint
        WHERE conrelid = 'idem_record'::regclass AND contype = 'c'""").fetchall()
    generated = db.execute("""
        SELECT 'sweep_at', 'sweep_at IS NOT DISTINCT FROM ' || pg_get_expr(adbin, adrelid)
        FROM pg_attrdef WHERE adrelid = 'idem_record'::regclass""").fetchall()
    for name, condition in constraints + generated:
        count = db.execute(f"SELECT count(*) FROM idem_record WHERE NOT ({condition})").fetchone()[0]
        if count:
            found.append(f"{name}: {count}")
    return found


# name: a query for what must not be there
INVARIANTS = {
    "no transactional claim was committed unfinished":
        "SELECT * FROM idem_record WHERE state = 'processing' AND lease IS NULL",
    "an identity has one record":
        "SELECT scope, key, principal FROM idem_record GROUP BY 1, 2, 3 HAVING count(*) > 1",
    "no two records have the same token, but for a caller's own":
        """SELECT token FROM idem_record WHERE token <> '11111111-2222-3333-4444-555555555555'
           GROUP BY 1 HAVING count(*) > 1""",
    "every identity is one that is allowed":
        r"""SELECT * FROM idem_record WHERE scope ~ '[\x01-\x1f\x7f]' OR key ~ '[\x01-\x1f\x7f]'
            OR principal ~ '[\x01-\x1f\x7f]' OR principal ~ '^[{[]'""",
    "the times of every record are in order":
        """SELECT * FROM idem_record WHERE claimed_at < created_at OR finished_at < claimed_at
           OR expires_at < claimed_at OR finished_at > clock_timestamp()""",
    "a lookup finds every record that has not expired":
        """SELECT r.scope, r.key, l.outcome FROM idem_record r, idem_lookup(r.scope, r.key, r.principal) l
           WHERE l.outcome = 'absent' AND r.expires_at > clock_timestamp() + interval '1 minute'""",
    "a replay is what is stored":
        """SELECT r.scope, r.key FROM idem_record r, idem_lookup(r.scope, r.key, r.principal) l
           WHERE l.outcome = 'replayed' AND (r.response_code, r.response_body, r.response_headers,
               r.response_bytes) IS DISTINCT FROM (l.response_code, l.response_body, l.response_headers,
               l.response_bytes)""",
}


def broken(db, name):
    return [str(row)[:300] for row in db.execute(INVARIANTS[name]).fetchmany(10)]


def amcheck(db):
    """What amcheck finds; None where it is not installed."""
    if not db.execute("SELECT 1 FROM pg_available_extensions WHERE name = 'amcheck'").fetchone():
        return None
    db.execute("CREATE EXTENSION amcheck")
    indexes = db.execute("""SELECT indexrelid::regclass::text FROM pg_index
                            WHERE indrelid = 'idem_record'::regclass""").fetchall()
    for index, in indexes:
        db.execute("SELECT bt_index_parent_check(%s::regclass, true, true)", (index,))
    return [str(row) for row in db.execute("SELECT * FROM verify_heapam('idem_record')")]
