"""Values to call functions with: right, odd and wrong ones.

Each carries the SQLSTATEs that it may cause wherever it stands, so that a
call's verdict allows what its own arguments explain and nothing else.
"""

import struct
from typing import NamedTuple, Optional

BAD = frozenset({"22023"})              # refused by the extension itself
WRONG_TYPE = frozenset({"42883"})       # no function of that name takes it
NONE = frozenset()


class Value(NamedTuple):
    sql: str
    may: frozenset = NONE
    text: Optional[bytes] = None        # as a parameter in text form
    binary: Optional[tuple] = None      # (type's oid, bytes) as a binary parameter


def quoted(text):
    return "'" + text.replace("'", "''") + "'"


def literal(text, may=NONE):
    return Value(quoted(text), may, text.encode())


def expression(sql, *may):
    return Value(sql, frozenset(may))


NULL = Value("NULL")
BAD_NULL = Value("NULL", BAD)


def stored(kind, name, may=NONE):
    """A value of the table odd, where long ones lie compressed or out of line."""
    return Value(f"(SELECT {kind} FROM odd WHERE name = '{name}')", may)


# Wrong as an argument of any type but the right one.
ANYTHING = [
    expression("5", "42883"),
    expression("1.5", "42883"),
    expression("true", "42883"),
    expression("ARRAY['a', 'b']", "42883"),
    expression("ROW(1, 'x')", "42883"),
    expression("'2000-01-01'::date", "42883"),
    expression("'infinity'::timestamptz", "42883"),
    expression("NULL::int4range", "42883"),
    expression("'{}'::json", "42883"),
    expression("'x'::regclass", "42P01", "42883"),
    expression("nosuch", "42703"),
    expression("*", "42601", "42883"),
    expression("DEFAULT", "42601"),
    expression("(SELECT 1, 2)", "42601"),
    expression("(VALUES ('a'), ('b'))", "21000", "42883"),
    expression("(1 / 0)::text", "22012", "42883"),
    expression("current_setting('no.such')", "42704", "42883"),
    expression("convert_from('\\xff', 'UTF8')", "22021", "42883"),
    expression("chr(0)", "54000", "42883"),
    expression("'\\xc3\\x28'::bytea", "42883", "22023"),
    expression("generate_series(1, 2)", "0A000", "42883"),
    expression("count(*)", "42803", "42883"),
    expression("$9", "42P02", "42P18", "08P01", "42883"),
    Value("'a'", BAD | {"42601", "42704"}, b"\xc3\x28", None),  # no role, no command
]

MULTIBYTE = ["é", "日本語", "\U0001F511", "ß\u0301", "\u202e\u200b", "a\u00a0b", "\ufffd", "\U0010FFFD"]

# --- identity ---------------------------------------------------------------

SCOPES = ["s0", "s1"]
KEYS = [f"k{i}" for i in range(10)]
PRINCIPALS = ["", "", "", "42"]


def odd_identity(rng, least):
    empty = BAD if least > 0 else NONE
    return rng.choice([
        BAD_NULL, Value("NULL::text", BAD), literal("", empty),
        literal("x" * 255), literal("x" * 256, BAD), literal("é" * 127), literal("é" * 128, BAD),
        literal("\x01", BAD), literal("a\nb", BAD), literal("\x7f", BAD), literal("\t", BAD),
        literal("\u0085"), literal("{", BAD if least == 0 else NONE),
        literal("[1]", BAD if least == 0 else NONE), literal('{"a": 1}', BAD if least == 0 else NONE),
        literal("%s%n%d"), literal("'\"\\;--"), literal(" "), literal("NULL"),
        literal(rng.choice(MULTIBYTE)),
        expression("'k1'::name"), expression("'k1'::varchar(5)"), expression("'k1'::char(5)"),
        expression("upper('x')"), expression("repeat('x', 3000000)", "22023"),
        expression("string_agg('x', '')", "42803"),
        stored("t", "compressed", BAD), stored("t", "external", BAD), stored("t", "absent", BAD),
        Value("'k1'", frozenset({"22021"}), b"k\xff"),
        Value("'k1'", frozenset({"22021"}), None, (25, b"\xed\xa0\x80")),
        Value("'k2'", NONE, None, (25, b"k2")),
    ])


def identity(rng, pool, least):
    """One of a few shared names, mostly, so that sessions meet."""
    if rng.random() < 0.06:
        return odd_identity(rng, least)
    return literal(rng.choice(pool))


# --- documents --------------------------------------------------------------

DOCUMENTS = ['{"a": 1}', '{"a": 1.0}', '{"a": 2}', "null", "[]", "{}", '"x"', "1"]


def jsonb(rng):
    if rng.random() < 0.7:
        return rng.choice([NULL, *map(literal, DOCUMENTS[:3])])
    return rng.choice([
        NULL, *map(literal, DOCUMENTS), literal('{"k": "' + "日本" * 20 + '"}'),
        literal('{"a": 1e130000}'), literal("-1e-16000"), literal("1e999999", frozenset({"22003"})),
        literal("9" * 1000), literal('{"a": "\\u0001\\ud83d\\udd11"}'),
        literal('"\\u0000"', frozenset({"22P05"})), literal('"\\ud800"', frozenset({"22P02"})),
        literal("{bad", frozenset({"22P02"})), literal("", frozenset({"22P02"})),
        literal('{"a": 1, "a": 2}'), literal("[" * 500 + "]" * 500),
        expression("(repeat('[', 20000) || repeat(']', 20000))::jsonb", "54001"),
        expression("'{}'::json", "42883"), expression("to_jsonb('x'::text)"),
        expression("jsonb_build_object('t', clock_timestamp())"),
        stored("j", "compressed"), stored("j", "external"), stored("j", "absent"),
        Value("'1'", frozenset({"22021"}), b'"\xff"'),
        Value("'1'", NONE, None, (3802, b"\x01{}")),
        Value("'1'", frozenset({"22P02", "08P01"}), None, (3802, b"\x01")),
    ])


def fingerprint(rng):
    if rng.random() < 0.75:
        return rng.choice([NULL, expression("sha256('a')"), expression("sha256('b')")])
    return rng.choice([
        expression("''::bytea", "22023"), expression("'\\x00'::bytea", "22023"),
        expression("sha256('a') || '\\x00'", "22023"), expression("substr(sha256('a'), 2)", "22023"),
        literal("\\xzz", BAD), literal("\\x0", BAD), literal("\\", frozenset({"22P02"})),
        expression("decode(repeat('ab', 1000000), 'hex')", "22023"), stored("b", "external", BAD),
        stored("b", "thirty-two"),
        Value("NULL", BAD, None, (17, b"")), Value("NULL", NONE, None, (17, b"\x00" * 32)),
    ])


def bytes_(rng):
    if rng.random() < 0.8:
        return NULL
    return rng.choice([
        expression("'\\x'::bytea"), expression("'\\x00ff'::bytea"), stored("b", "compressed"),
        expression("decode(repeat('00', 5000), 'hex')"), literal("\\xzz", BAD),
        Value("NULL", NONE, None, (17, bytes(range(256)))),
    ])


# --- times ------------------------------------------------------------------

BAD_INTERVALS = [
    literal("-1 s", BAD), literal("-1 us", BAD), literal("365251 days", BAD),
    literal("1000000 years", BAD), literal("178000000 years", BAD),
    literal("-178000000 years", BAD), literal("2147483647 months", BAD),
    literal("9223372036854775807 us", BAD), literal("-9223372036854775808 us", BAD),
    literal("infinity", frozenset({"22023", "22007"})),
    literal("-infinity", frozenset({"22023", "22007"})),
    literal("9223372036854775808 us", frozenset({"22015", "22008", "22023"})),
    literal("2147483648 days", frozenset({"22015", "22008", "22023"})),
    literal("abc", frozenset({"22007"})), literal("", frozenset({"22007"})),
    expression("make_interval(secs => 1e30)", "22008", "22003", "22023"),
    expression("make_interval(years => 2147483647)", "22023", "22008"),
    expression("interval '1 day' * 1e300", "22008", "22003"),
    Value("'1 ms'", BAD, None, (1186, struct.pack(">qii", 2 ** 63 - 1, 2 ** 31 - 1, 2 ** 31 - 1))),
    Value("'1 ms'", BAD, None, (1186, struct.pack(">qii", -2 ** 63, -2 ** 31, -2 ** 31))),
    Value("'1 ms'", BAD, None, (1186, struct.pack(">qii", 2 ** 63 - 1, 0, 0))),
    Value("'1 ms'", BAD, None, (1186, struct.pack(">qii", 0, 0, 2 ** 31 - 1))),
    Value("'1 ms'", frozenset({"08P01"}), None, (1186, b"\x00" * 3)),
]
ZEROES = ["0", "-0", "1 mon -30 days", "PT0S", "1 day -24 hours"]


def interval(rng, usual, zero=NONE):
    """usual values mostly; zero is what a zero may cause."""
    chance = rng.random()
    if chance < 0.9:
        value = rng.choice(usual)
        return NULL if value is None else literal(value)
    if chance < 0.93:
        return literal(rng.choice(ZEROES), zero)
    if chance < 0.94:
        return literal("365250 days")
    return rng.choice(BAD_INTERVALS)


def ttl(rng):
    return interval(rng, [None, None, "1 us", "1 ms", "1 ms", "5 ms", "20 ms", "100 ms"], BAD)


def lease(rng):
    return interval(rng, [None, "0", "1 us", "1 ms", "20 ms", "1 hour", "1 hour", "1 day"])


def renewal(rng):
    return interval(rng, [None, None, "1 us", "1 ms", "1 hour"], BAD)


def wait(rng):
    """Long ones would only make the test long: the statement's timeout ends them."""
    if rng.random() < 0.001:
        return literal(rng.choice(["365250 days", "1 hour"]))
    value = interval(rng, [None, None, None, "0", "1 us", "1 ms", "3 ms"])
    return literal("2 ms") if value.sql == "'365250 days'" else value


# --- words, numbers, tokens ---------------------------------------------------

def words(rng, usual, odd=("", "X", "succeeded ", "x" * 300)):
    if rng.random() < 0.93:
        return literal(rng.choice(usual))
    return rng.choice([BAD_NULL, expression("'retry'::name", "22023"), stored("t", "external", BAD),
                       *(literal(word, BAD) for word in odd)])


def state(rng):
    return words(rng, ["succeeded", "succeeded", "failed", "released", "unknown"],
                 ("processing", "SUCCEEDED", "", "x" * 300))


def resolution(rng):
    return words(rng, ["succeeded", "failed", "released"], ("unknown", "processing", ""))


def on_abandon(rng):
    return NULL if rng.random() < 0.5 else words(rng, ["unknown", "retry", "retry"], ("RETRY", ""))


def privilege(rng):
    return words(rng, ["client", "client", "monitor", "operator"], ("", "CLIENT", "all"))


def code(rng):
    return rng.choice([
        NULL, NULL, literal("200"), literal("404"), expression("0"), expression("-1"),
        expression("2147483647"), expression("'-2147483648'"), expression("200::smallint"),
        expression("2147483648", "42883"), literal("2147483648", frozenset({"22003"})),
        literal("abc", frozenset({"22P02"})), expression("1.5", "42883"),
        Value("NULL", frozenset({"22P03", "08P01"}), None, (23, b"\x00")),
    ])


def boolean(rng):
    return rng.choice([
        expression("true"), expression("true"), expression("false"), expression("false"),
        BAD_NULL, literal("maybe", frozenset({"22P02"})), expression("1", "42883"), literal("yes"),
    ])


def count(rng):
    return rng.choice([
        expression("1"), expression("10"), expression("1000"), expression("2147483647"),
        expression("0", "22023"), expression("-2147483648", "22023"), BAD_NULL,
        expression("2147483648", "42883"), literal("x", frozenset({"22P02"})),
    ])


def pause(rng):
    return rng.choice([literal("0"), literal("0"), literal("1 us"), literal("1 ms"), BAD_NULL,
                       literal("-1 s", BAD), literal("abc", frozenset({"22007"}))])


def token(rng, live):
    """live: an expression for the token that the record has now."""
    if rng.random() < 0.7:
        return Value(live)
    return rng.choice([
        NULL, NULL, expression("gen_random_uuid()"),
        literal("00000000-0000-0000-0000-000000000000"),
        literal("FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF"), literal("xyz", frozenset({"22P02"})),
        expression("'x'::bytea", "42883"), Value("NULL", NONE, None, (2950, bytes(range(16)))),
        Value("NULL", frozenset({"08P01"}), None, (2950, b"\x00" * 3)),
    ])


def new_token(rng):
    if rng.random() < 0.85:
        return NULL
    return rng.choice([expression("gen_random_uuid()"), literal("11111111-2222-3333-4444-555555555555"),
                       literal("{", frozenset({"22P02"}))])


def text(rng):
    if rng.random() < 0.8:
        return rng.choice([NULL, literal("ok"), literal(""), literal("x" * 200)])
    return rng.choice([
        literal("\x01\x02\n\t\x7f"), *map(literal, MULTIBYTE), literal("é" * 3000),
        stored("t", "compressed"), stored("t", "external"), expression("repeat('x', 10000)"),
        Value("'x'", frozenset({"22021"}), b"\xff\xfe"), expression("version()"),
    ])


def huge_text(rng):
    return expression(f"repeat('huge', {rng.randrange(1, 700000)})")


def huge_document(rng):
    return expression("(SELECT jsonb_object_agg(i, repeat('x', 90)) FROM generate_series(1, "
                      f"{rng.randrange(1, 20000)}) i)")


def checkpoint(rng):
    return BAD_NULL if rng.random() < 0.1 else rng.choice(
        [literal("charged"), literal(""), literal("日本"), stored("t", "external")])


def keys(rng):
    """An array of keys."""
    some = [quoted(rng.choice(KEYS)) for _ in range(rng.randrange(6))]
    return rng.choice([
        expression(f"ARRAY[{', '.join(some)}]::text[]"), expression(f"ARRAY[{', '.join(some)}]::text[]"),
        expression(f"ARRAY[{', '.join(some)}]::text[]"), expression("'{}'::text[]"),
        expression("'{k1,k1,k2}'"), expression("'{{k1,k2},{k3,k1}}'"),
        expression("'[5:6]={k1,k2}'::text[]"), expression("'{k1,NULL}'", "22023"),
        expression("ARRAY['']", "22023"), expression("ARRAY[repeat('x', 256)]", "22023"),
        expression("ARRAY[E'a\\x01']", "22023"), BAD_NULL, literal("k1", frozenset({"22P02"})),
        expression("ARRAY[1, 2]", "42883"), expression("ARRAY['k1'::varchar, 'k2']"),
        expression("(SELECT array_agg('k' || i) FROM generate_series(1, 300) i)"),
    ])


def grantee(rng):
    return rng.choice([
        literal("fuzz_client"), literal("fuzz_client"), literal("fuzz_client"), literal("fuzz_other"),
        literal("nosuch", frozenset({"42704"})), literal("-", BAD), BAD_NULL,
        literal("a b", frozenset({"42602", "42704"})), expression("0::oid", "22023"),
        expression("4294967295::oid", "42704", "22023"), expression("1.5", "42883"),
    ])
