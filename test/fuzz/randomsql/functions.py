"""The functions of the extension: their arguments, and what each may raise.

RAISES is what a call may end with whatever its arguments, beside what these
allow themselves (values.py): the errors of the README's reference.
"""

from typing import NamedTuple

from . import values
from .values import NONE, Value, expression, literal

WAITS = frozenset({"40P01"})            # waits as an UPDATE does, deadlocks included
LOST = frozenset({"ID001"})


class Call(NamedTuple):
    function: str
    sql: str                # idem_claim('s', 'k', ...), with $n for parameters
    params: tuple           # Values given as parameters
    may: frozenset
    form: str               # row, set, scalar or procedure
    unfinished: bool        # may leave a claim that cannot be committed


class Identity(NamedTuple):
    scope: Value
    key: Value
    principal: Value
    live: str               # an expression for the token of the record


# A key that was seen once is not for claims: most of these calls leave theirs alone.
ONCE_SCOPES = ["o0", "o0", "o0", "s0"]


def identity(rng, scopes, keys):
    scope = values.identity(rng, scopes, 1)
    key = values.identity(rng, keys, 1)
    principal = values.identity(rng, values.PRINCIPALS, 0)
    plain = [v.sql if v.sql.startswith("'") else "'k0'" for v in (scope, key, principal)]
    return Identity(scope, key, principal, f"fuzz_token({', '.join(plain)})")


COMMANDS = [
    literal("INSERT INTO orders (doc) VALUES ($1) RETURNING id::text, 201"),
    literal("INSERT INTO orders (doc) VALUES ($1) RETURNING id"),
    literal("INSERT INTO orders (doc) SELECT $1"),
    literal("SELECT 'x', NULL::int"), literal("SELECT $1"), literal("SELECT 7, 8::bigint"),
    literal("SELECT"), literal("UPDATE orders SET doc = $1 WHERE false RETURNING doc"),
    literal("VALUES (1)"), literal("SHOW work_mem"),
    literal("SELECT repeat('x', 5000)"), literal("SELECT 'x', 2147483648", frozenset({"22003"})),
    literal("SELECT 'x', 'y'", frozenset({"42804"})), literal("SELECT 1, 2, 3", frozenset({"42804"})),
    literal("SELECT generate_series(1, 3)", frozenset({"21000"})),
    literal("SELECT 1 / 0", frozenset({"22012"})), literal("SELECT nosuch", frozenset({"42703"})),
    literal("SELECT * FROM nosuch", frozenset({"42P01"})), literal("bad", frozenset({"42601"})),
    literal("", frozenset({"22023"})), literal(";", frozenset({"22023"})),
    literal("SELECT 1; SELECT 2", frozenset({"22023"})), literal("COMMIT", frozenset({"0A000"})),
    literal("SAVEPOINT x", frozenset({"0A000"})), literal("SELECT $2", frozenset({"42P02"})),
    literal("COPY orders TO STDOUT", frozenset({"0A000"})),
    literal("CREATE TEMP TABLE IF NOT EXISTS made (a int)"), literal("SELECT 'é日本'"),
    literal("SELECT outcome FROM idem_execute('s1', 'k9', command => 'SELECT 5')"),
    literal("SELECT idem_once('s1', 'k8')", frozenset({"55006", "40P01"})),
    literal("SELECT outcome FROM idem_claim('s0', 'k1')", frozenset({"ID002"})),
    literal("SELECT idem_forget('s0', 'k2')", frozenset({"40P01"})),
    literal("SELECT deleted FROM idem_sweep(5)"),
    expression("'SELECT ' || random()"), expression("NULL", "22023"),
    expression("5", "42883"), expression("repeat(' ', 100000) || 'SELECT 1'"),
]


def _claim(rng, who):
    return [("request", values.jsonb(rng)), ("fingerprint", values.fingerprint(rng)),
            ("ttl", values.ttl(rng)), ("lease", values.lease(rng)), ("wait", values.wait(rng)),
            ("on_abandon", values.on_abandon(rng)), ("claim_token", values.new_token(rng))]


def _finish(rng, who):
    return [("token", values.token(rng, who.live)), ("state", values.state(rng)),
            *_response(rng), ("ttl", values.ttl(rng))]


def _response(rng):
    return [("response_code", values.code(rng)), ("response_body", values.text(rng)),
            ("response_headers", values.jsonb(rng)), ("response_bytes", values.bytes_(rng))]


def _extend(rng, who):
    return [("token", values.token(rng, who.live)), ("lease", values.renewal(rng))]


def _checkpoint(rng, who):
    return [("token", values.token(rng, who.live)), ("checkpoint", values.checkpoint(rng)),
            ("checkpoint_data", values.jsonb(rng)), ("on_abandon", values.on_abandon(rng)),
            ("lease", values.renewal(rng))]


def _assert(rng, who):
    return [("token", values.token(rng, who.live))]


def _once(rng, who):
    return [("ttl", values.ttl(rng))]


def _execute(rng, who):
    return [("request", values.jsonb(rng)), ("command", rng.choice(COMMANDS)),
            ("ttl", values.ttl(rng)), ("wait", values.wait(rng))]


def _takeover(rng, who):
    return [("lease", values.lease(rng)), ("wait", values.wait(rng)),
            ("force", values.boolean(rng))]


def _resolve(rng, who):
    return [("state", values.resolution(rng)), *_response(rng), ("ttl", values.ttl(rng)),
            ("force", values.boolean(rng))]


def _nothing(rng, who):
    return []


class Function(NamedTuple):
    arguments: object       # those after the identity
    raises: frozenset
    form: str
    share: int              # of the calls


BAD = values.BAD
FUNCTIONS = {
    "idem_claim": Function(_claim, BAD, "row", 22),
    "idem_finish": Function(_finish, BAD | LOST | WAITS | {"54000"}, "scalar", 14),
    "idem_lookup": Function(_nothing, NONE, "row", 6),
    "idem_extend": Function(_extend, BAD | LOST | WAITS | {"55000"}, "scalar", 5),
    "idem_checkpoint": Function(_checkpoint, BAD | LOST | WAITS | {"55000", "54000"}, "scalar", 6),
    "idem_assert": Function(_assert, BAD | LOST | WAITS | {"55000"}, "scalar", 4),
    "idem_once": Function(_once, WAITS | {"55006"}, "scalar", 6),
    "idem_once_batch": Function(_once, WAITS | {"55006"}, "set", 4),
    "idem_execute": Function(_execute, BAD | LOST | WAITS | {"54000"}, "row", 8),
    "idem_takeover": Function(_takeover, NONE, "row", 6),
    "idem_resolve": Function(_resolve, BAD | {"54000"}, "row", 6),
    "idem_forget": Function(_nothing, WAITS, "scalar", 9),
    "idem_sweep": Function(None, NONE, "row", 3),
    "idem_sweep_all": Function(None, NONE, "procedure", 2),
    "idem_fingerprint": Function(None, NONE, "scalar", 4),
}
OPERATOR = {        # calls that only the session which may grant makes
    "idem_grant": Function(None, NONE, "scalar", 1),
    "idem_revoke": Function(None, NONE, "scalar", 1),
    "idem_privilege_set": Function(None, NONE, "set", 1),
}
NAMES, SHARES = zip(*((name, f.share) for name, f in FUNCTIONS.items()))


def _arguments(rng, name, huge, keys):
    """(required, optional) as lists of (name, Value)."""
    if name in ("idem_grant", "idem_revoke"):
        return [("grantee", values.grantee(rng))], [("privilege", values.privilege(rng))]
    if name == "idem_privilege_set":
        return [("privilege", values.privilege(rng))], []
    if name == "idem_sweep":
        return [], [("max_rows", values.count(rng))]
    if name == "idem_sweep_all":
        return [], [("batch", values.count(rng)), ("pause", values.pause(rng))]
    if name == "idem_fingerprint":
        return [("request", values.huge_document(rng) if huge else values.jsonb(rng))], []
    scopes = (["huge"] if huge else ONCE_SCOPES if name in ("idem_once", "idem_once_batch")
              else values.SCOPES)
    who = identity(rng, scopes, keys)
    optional = [("principal", who.principal), *FUNCTIONS[name].arguments(rng, who)]
    if name == "idem_once_batch":
        return [("scope", who.scope), ("keys", values.keys(rng))], optional
    if huge:
        optional = [(n, _made_huge(rng, n, v)) for n, v in optional]
    return [("scope", who.scope), ("key", who.key)], optional


def _made_huge(rng, name, value):
    if name == "response_body" or name == "checkpoint":
        return values.huge_text(rng)
    if name in ("response_headers", "checkpoint_data", "request"):
        return values.huge_document(rng)
    return value


def _written(rng, value, params):
    """The value in SQL, now and then as a parameter."""
    if (value.text is not None or value.binary is not None) and rng.random() < params.share:
        params.values.append(value)
        return f"${len(params.values)}"
    return value.sql


class Params:
    def __init__(self, share):
        self.share = share
        self.values = []


# Not required by the signature, but for a call that comes to something.
NEEDED = ("token", "checkpoint", "command", "state")


def _spelled(rng, name, required, optional, params):
    """The call's SQL, by position or by name, with optional arguments left out."""
    chance = rng.random()
    named = [(n, v) for n, v in optional if rng.random() < (0.9 if n in NEEDED else 0.3)]
    if chance < 0.12:           # by position, as far as it goes
        parts = [_written(rng, v, params) for _, v in required + optional[:rng.randrange(len(optional) + 1)]]
    elif chance < 0.2:          # all by name, in any order
        parts = [f"{n} => {_written(rng, v, params)}"
                 for n, v in rng.sample(required + named, len(required + named))]
    else:
        parts = [_written(rng, v, params) for _, v in required]
        parts += [f"{n} => {_written(rng, v, params)}" for n, v in named]
    return f"{name}({', '.join(parts)})"


def _spoiled(rng, name, required, optional):
    """Not a proper call: one value of a wrong kind, or arguments that do not fit."""
    everything = required + optional
    chance = rng.random()
    if everything and chance < 0.7:
        at = rng.randrange(len(everything))
        odd = rng.choice(values.ANYTHING)
        everything[at] = (everything[at][0], odd)
        # typed otherwise, the value may pass another check than the argument's
        may = odd.may | {"42883", "22P02", "22007", "22021", "22023", "42804", "42846"}
        parts = [f"{n} => {v.sql}" for n, v in everything]
        return f"{name}({', '.join(parts)})", may
    parts = [v.sql for _, v in required]
    parts += rng.choice([["nosuch => 1"], ["scope => 'a'", "scope => 'b'"], ["1"] * 14,
                         ["VARIADIC ARRAY['a']"], ["principal => 'a'", "'b'"]])
    return f"{name}({', '.join(parts)})", frozenset({"42883", "42601", "42P13"})


def random_call(rng, as_operator=False, parameters=True, keys=values.KEYS):
    name = (rng.choice(list(OPERATOR)) if as_operator else rng.choices(NAMES, SHARES)[0])
    function = FUNCTIONS.get(name) or OPERATOR[name]
    huge = rng.random() < 0.002
    required, optional = _arguments(rng, name, huge, keys)
    may = function.raises
    for _, value in required + optional:
        may |= value.may
    params = Params(0.35 if parameters and rng.random() < 0.4 else 0)
    if rng.random() < 0.02:
        sql, odd = _spoiled(rng, name, required, optional)
        may |= odd
        params.values = []
    else:
        sql = _spelled(rng, name, required, optional, params)
    return Call(name, sql, tuple(params.values), may, function.form,
                name in ("idem_claim", "idem_takeover", "idem_execute"))
