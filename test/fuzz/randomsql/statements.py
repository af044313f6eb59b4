"""Random statements: calls in every place that a call can stand, and what
transactions, settings and cursors do around them."""

from typing import NamedTuple

from .functions import FUNCTIONS, random_call
from .values import KEYS, NONE, quoted

NO_TRANSACTION = frozenset({"25P01"})
SAVEPOINTS = ["a", "b"]
LEVELS = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]


class Statement(NamedTuple):
    text: str
    may: frozenset = NONE
    kind: str = "other"         # or what it does to the transaction (session.py)
    params: tuple = ()
    functions: tuple = ()       # those called
    unfinished: bool = False    # on its own, may fail to commit (ID002)
    serializable: bool = False  # kind begin only
    read_only: bool = False     # kind begin only
    simple: bool = False        # several statements in one: by the simple protocol


# --- the places of a call -----------------------------------------------------

def _swallowing(call, body, also=NONE):
    """PL/pgSQL that catches what the call may raise, and nothing else."""
    allowed = ",".join(sorted(call.may | {"25006", "40001", "42501", "0A000"} | also))
    return (f"DO $fuzz$ DECLARE r record; BEGIN {body} EXCEPTION WHEN OTHERS THEN "
            f"IF SQLSTATE <> ALL ('{{{allowed}}}') THEN RAISE; END IF; END $fuzz$")


def _places(call):
    """(share, SQL, further SQLSTATEs) for each place.  The errors of a call that
    PL/pgSQL catches are not the statement's."""
    f = call.sql
    twice = frozenset({"0A000"})
    places = [
        (30, f"SELECT * FROM {f}", NONE),
        (8, f"SELECT {f}", NONE),
        (2, f"SELECT {f}, {f}", twice),
        (3, f"SELECT count(*) FROM generate_series(1, 3) g, LATERAL (SELECT * FROM {f}) q", NONE),
        (3, f"WITH q AS MATERIALIZED (SELECT * FROM {f}) SELECT * FROM q", NONE),
        (2, f"SELECT EXISTS (SELECT FROM {f})", NONE),
        (2, f"SELECT CASE WHEN g = 2 THEN {f} END FROM generate_series(1, 3) g",
            twice),
        (2, f"EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) SELECT * FROM {f}", NONE),
        (1, f"INSERT INTO log SELECT q::text FROM {f} q", NONE),
        (1, f"SELECT q FROM (SELECT {f} AS q OFFSET 0) s WHERE q IS NOT NULL LIMIT 1", NONE),
    ]
    if call.form == "row":
        places += [(3, f"SELECT ({f}).*", twice), (1, f"SELECT ({f}).outcome", NONE | {"42703"})]
    return places


def _nested(call):
    """Places where the call takes no parameters of the statement."""
    f = call.sql
    return [
        _swallowing(call, f"PERFORM {f};"),
        _swallowing(call, f"SELECT * INTO r FROM {f};"),
        _swallowing(call, f"FOR r IN SELECT * FROM {f} LOOP NULL; END LOOP;"),
        _swallowing(call, f"EXECUTE {quoted('SELECT * FROM ' + f)} INTO r;"),
        _swallowing(call, f"PERFORM {f}; PERFORM 1 / 0;", {"22012"}),
    ]


def _statement(rng, operator, keys=KEYS):
    """A call, in some place."""
    call = random_call(rng, operator, keys=keys)
    if call.form == "procedure":
        return Statement(f"CALL {call.sql}", call.may | {"2D000", "0A000"}, params=call.params,
                         functions=(call.function,))
    if not call.params and rng.random() < 0.12 and "$fuzz$" not in call.sql:
        return Statement(rng.choice(_nested(call)), call.may & {"42601", "42883"},
                         functions=(call.function,), unfinished=call.unfinished)
    places = _places(call)
    _, sql, may = rng.choices(places, [place[0] for place in places])[0]
    return Statement(sql, call.may | may, params=call.params, functions=(call.function,),
                     unfinished=call.unfinished)


def _several(rng, operator):
    """Some calls in one message: one transaction, unless there is one already."""
    calls = [random_call(rng, operator and rng.random() < 0.05, parameters=False)
             for _ in range(rng.randrange(2, 5))]
    calls = [call for call in calls if call.form != "procedure"]
    if not calls:
        return _statement(rng, operator)
    may = frozenset().union(*(call.may for call in calls))
    return Statement("; ".join(f"SELECT * FROM {call.sql}" for call in calls), may,
                     functions=tuple(call.function for call in calls), simple=True,
                     unfinished=any(call.unfinished for call in calls))


# --- what takes several statements -------------------------------------------

def _cursor(rng, operator, name):
    call = random_call(rng, operator, parameters=False)
    if call.form == "procedure":
        return []
    hold = rng.random() < 0.4
    may = call.may | (NONE if hold else NO_TRANSACTION)
    later = call.may | {"34000", "0A000", "55000"}
    declare = Statement(
        f"DECLARE {name} {rng.choice(['', 'SCROLL ', 'NO SCROLL '])}CURSOR {'WITH HOLD ' if hold else ''}"
        f"FOR SELECT * FROM {call.sql}", may, "hold" if hold else "other",
        functions=(call.function,), unfinished=call.unfinished)
    fetch = rng.choice([f"FETCH {name}", f"FETCH ALL FROM {name}", f"MOVE 2 IN {name}",
                        f"FETCH BACKWARD 1 FROM {name}"])
    return [declare, Statement(fetch, later), Statement(fetch, later),
            Statement(f"CLOSE {name}", frozenset({"34000"}))][:rng.randrange(1, 5)] + \
        [Statement("CLOSE ALL")]


def _prepared(rng, operator, name):
    call = random_call(rng, operator, parameters=False)
    if call.form == "procedure":
        return []
    run = Statement(f"EXECUTE {name}", call.may | {"26000"}, functions=(call.function,),
                    unfinished=call.unfinished)
    return [Statement(f"PREPARE {name} AS SELECT * FROM {call.sql}", call.may),
            *[run] * rng.randrange(1, 8), Statement("DEALLOCATE ALL")]


def _once_by_trigger(rng):
    return [Statement(f"INSERT INTO events (key) VALUES ('k{rng.randrange(10)}')",
                      FUNCTIONS["idem_once"].raises, functions=("idem_once",))]


# --- settings ------------------------------------------------------------------

BAD_SETTING = frozenset({"22023"})
SETTINGS = {
    "ttl": ["1 s", "1h", "20", "2147483647", "0", "-1", "2147483648", "abc", "", "1 parsec"],
    "once_ttl": ["1 s", "30d", "0", "1e3", "1e30"],
    "lease": ["0", "0", "50 ms", "1h", "2147483647", "-1", "abc", "0.5"],
    "wait": ["0", "0", "2 ms", "-1", "2147483648", "abc"],
    "on_abandon": ["unknown", "retry", "RETRY", "", "no"],
    "durable_claims": ["on", "off", "maybe", ""],
    "max_response": ["64MB", "64MB", "100", "0", "300MB", "-1", "1TB"],
}
GENERIC = ["SET enable_indexscan = off", "SET enable_seqscan = off", "SET synchronous_commit = off",
           "SET {parallel} = on", "SET plan_cache_mode = force_generic_plan",
           "SET search_path = pg_catalog, public", "SET TimeZone = 'Asia/Kathmandu'",
           "SET DateStyle = 'German'", "SET IntervalStyle = 'sql_standard'",
           "SET bytea_output = 'escape'", "SET work_mem = '64kB'", "SET jit_above_cost = 0",
           "SET client_encoding = 'UTF8'", "SET extra_float_digits = -15"]


def _setting(rng, parallel):
    chance = rng.random()
    if chance < 0.3:
        return Statement("RESET ALL")
    if chance < 0.5:
        return Statement(rng.choice(GENERIC).format(parallel=parallel))
    name = rng.choice(list(SETTINGS))
    value = quoted(rng.choice(SETTINGS[name]))
    return rng.choice([
        Statement(f"SET idempotency.{name} = {value}", BAD_SETTING),
        Statement(f"SET LOCAL idempotency.{name} = {value}", BAD_SETTING),
        Statement(f"SELECT set_config('idempotency.{name}', {value}, {rng.choice(['true', 'false'])})",
                  BAD_SETTING),
        Statement(f"RESET idempotency.{name}"), Statement(f"SHOW idempotency.{name}"),
        Statement(f"SET idempotency.no{name} = {value}", frozenset({"42602"})),
    ])


# --- reading, and the rest -----------------------------------------------------

VIEWS = ["SELECT * FROM idem_unresolved", "SELECT * FROM idem_health",
         "SELECT * FROM idem_stats", "SELECT * FROM idem_report",
         "SELECT count(*) FROM idem_unresolved WHERE state = 'unknown'",
         "SELECT (idem_unresolved).* FROM idem_unresolved LIMIT 3",
         "SELECT sum(get_byte(idem_fingerprint(j), 0)) FROM odd WHERE j IS NOT NULL",
         "SELECT * FROM idem_lookup('s0', 'k1') CROSS JOIN idem_health",
         "SELECT n.* FROM generate_series(0, 9) g, idem_lookup('s1', 'k' || g) n"]
VIEW_FUNCTIONS = ["idem_unresolved", "idem_health", "idem_stats", "idem_report", "idem_unresolved", "idem_unresolved",
                  "idem_fingerprint", "idem_lookup", "idem_lookup"]


def _view(rng):
    at = rng.randrange(len(VIEWS))
    return Statement(VIEWS[at], functions=(VIEW_FUNCTIONS[at],))


class Generator:
    """An endless row of statements, of which whole transactions are made."""

    def __init__(self, rng, operator, parallel):
        self.rng = rng
        self.operator = operator
        self.parallel = parallel
        self.inside = False
        self.keys = KEYS
        self.names = 0

    def next(self):
        """One or more statements."""
        rng = self.rng
        chance = rng.random()
        if self.inside and chance < 0.28:
            return [self._end()]
        if not self.inside and chance < 0.12:
            return [self._begin()]
        operator = self.operator and rng.random() < 0.1
        chance = rng.random()
        if self.inside and chance < 0.12:
            return [self._savepoint()]
        if self.inside and chance < 0.2:
            return [Statement("SELECT pg_sleep(0.002)")]        # for others to meet what it holds
        chance = rng.random()
        if chance < 0.03:
            return [_setting(rng, self.parallel)]
        if chance < 0.06:
            return [_view(rng)]
        if chance < 0.08:
            return _cursor(rng, operator, self._name("c"))
        if chance < 0.1:
            return _prepared(rng, operator, self._name("p"))
        if chance < 0.11:
            return _once_by_trigger(rng)
        if chance < 0.15:
            return [_several(rng, operator)]
        return [_statement(rng, operator, self.keys)]

    def _name(self, prefix):
        self.names += 1
        return f"{prefix}{self.names}"

    def _begin(self):
        rng = self.rng
        level = rng.choice(LEVELS)
        read_only = rng.random() < 0.1
        deferrable = read_only and rng.random() < 0.2
        self.inside = True
        self.keys = rng.sample(KEYS, 2)         # or its calls would rarely meet
        return Statement(
            f"BEGIN ISOLATION LEVEL {level}{' READ ONLY' if read_only else ''}"
            f"{' DEFERRABLE' if deferrable else ''}", kind="begin",
            serializable=level == "SERIALIZABLE", read_only=read_only)

    def _end(self):
        chance = self.rng.random()
        if chance < 0.05:
            return Statement("COMMIT AND CHAIN", NO_TRANSACTION, "chain")
        self.inside = False
        self.keys = KEYS
        if chance < 0.65:
            return Statement("COMMIT", kind="commit")
        if chance < 0.7:
            return Statement(f"PREPARE TRANSACTION '{self._name('fuzz')} {id(self)}'",
                             frozenset({"55000", "0A000"}), "commit")
        return Statement("ROLLBACK", kind="rollback")

    def _savepoint(self):
        name = self.rng.choice(SAVEPOINTS)
        kind = self.rng.choice(["savepoint", "savepoint", "rollback to", "release"])
        if kind == "savepoint":
            return Statement(f"SAVEPOINT {name}", NO_TRANSACTION)
        if kind == "release":
            return Statement(f"RELEASE {name}", NO_TRANSACTION | {"3B001"})
        return Statement(f"ROLLBACK TO {name}", NO_TRANSACTION | {"3B001"}, "rollback to")
