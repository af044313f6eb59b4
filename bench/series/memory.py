"""Does a backend grow?  A million calls of each function in one session.

The calls run in transactions of a hundred, on tables that stay small where the
function allows it.  Compared are the sizes, between statements, after a few
thousand calls and after a million more: of PostgreSQL's memory contexts and of
the process's own memory.
"""

from . import db

TOKEN = "'11111111-1111-1111-1111-111111111111'"

# What one turn does; i counts turns.  A hundred keys are leased to begin with.
TURNS = {
    "idem_claim, replay": "PERFORM outcome FROM idem_claim('m', 'done');",
    "idem_claim, mismatch": "PERFORM outcome FROM idem_claim('m', 'done', request => '{\"a\": 1}');",
    "idem_claim + idem_finish": """PERFORM outcome FROM idem_claim('m', 'k' || i, request => '{"a": 1}');
        PERFORM idem_finish('m', 'k' || i, response_code => 201, response_body => 'done');""",
    "idem_claim, leased, + idem_forget": """
        PERFORM outcome FROM idem_claim('m', 'f' || i, lease => '60 s');
        PERFORM idem_forget('m', 'f' || i);""",
    "idem_lookup": "PERFORM outcome FROM idem_lookup('m', 'done');",
    "idem_extend": "PERFORM idem_extend('m', 'leased' || i % 100, token => " + TOKEN + ");",
    "idem_checkpoint": "PERFORM idem_checkpoint('m', 'leased' || i % 100, token => " + TOKEN + ","
                       " checkpoint => 'sent', checkpoint_data => '{\"ref\": 1}');",
    "idem_assert": "PERFORM idem_assert('m', 'leased' || i % 100, token => " + TOKEN + ");",
    "idem_takeover": "PERFORM outcome FROM idem_takeover('m', 'leased' || i % 100, lease => '60 s',"
                     " force => true);",
    "idem_resolve": "PERFORM outcome FROM idem_resolve('m', 'leased' || i % 100,"
                    " state => 'released', force => true);",
    "idem_once": "PERFORM idem_once('m', 'o' || i);",
    "idem_once_batch": "PERFORM idem_once_batch('m', ARRAY['a' || i, 'b' || i, 'a' || i]);",
    "idem_execute": "PERFORM outcome FROM idem_execute('m', 'e' || i, request => '{\"a\": 1}',"
                    " command => 'SELECT $1->>''a''');",
    "idem_fingerprint": "PERFORM idem_fingerprint(jsonb_build_object('a', i, 'b', '{1, 2}'::int[]));",
    "idem_sweep": """IF i % 1000 = 0 THEN
            PERFORM idem_once('m', 's' || i, ttl => '1 us');
        END IF;
        PERFORM idem_sweep(10);""",
    "idem_finish, refused": """BEGIN
            PERFORM idem_finish('m', 'nowhere', token => """ + TOKEN + """);
        EXCEPTION WHEN OTHERS THEN
            NULL;
        END;""",
}

SETUP = """
TRUNCATE idem_record;
SELECT outcome FROM idem_claim('m', 'done', lease => '60 s', claim_token => {token});
SELECT idem_finish('m', 'done', token => {token}, response_body => repeat('x', 5000));
SELECT count(*) FROM generate_series(0, 99) i,
    idem_claim('m', 'leased' || i, lease => '1 day', claim_token => {token});
""".format(token=TOKEN)

LOOP = """
DO $do$
BEGIN
    FOR i IN {first}..{last} LOOP
        {turn}
        IF i % 100 = 0 THEN
            COMMIT;
        END IF;
    END LOOP;
END
$do$;
"""

SIZES = """
SELECT 'sizes', sum(total_bytes),
    (regexp_match(pg_read_file('/proc/self/status'), 'RssAnon:\\s+(\\d+)'))[1]::bigint * 1024
FROM pg_backend_memory_contexts;
"""


def run(size, say):
    db.fresh_database("bench_memory")
    rows = []
    for name, turn in TURNS.items():
        rows.append({"name": name, **grown(turn, size)})
        say("%(name)s: contexts %(contexts)+d bytes, process %(process)+d bytes" % rows[-1])
    return {"calls": size.calls, "rows": rows}


def grown(turn, size):
    sizes = [row[1:] for row in db.psql(
        "SET synchronous_commit = off; SET idempotency.durable_claims = off;" + SETUP + SIZES
        + LOOP.format(first=1, last=size.warm, turn=turn) + SIZES
        + LOOP.format(first=size.warm + 1, last=size.warm + size.calls, turn=turn) + SIZES)
        if row[0] == "sizes"]
    (contexts, process), (contexts_after, process_after) = [map(int, row) for row in sizes[1:]]
    return {"contexts": contexts_after - contexts, "process": process_after - process}
