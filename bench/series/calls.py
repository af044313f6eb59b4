"""The calls compared with bare SQL: what both sides send, statement by statement.

The key is made by the same expression on both sides.  A script is complete:
pgbench runs it prepared, for throughput and for counting instructions.
"""

from .db import BODY

# Which of the settled records, and a key that nobody has used.
OLD = "\\set n random(1, :records)\n"
NEW = "\\set n random(1, 9000000000000000000)\n"

INSERT = """INSERT INTO bare_record (scope, key, principal, state, attempt, token, created_at,
    claimed_at, expires_at, ttl, on_abandon, recovered, progressed{columns})
VALUES ('order', 'new-' || :n, '42', 'processing', 1, gen_random_uuid(), clock_timestamp(),
    clock_timestamp(), clock_timestamp() + '24 hours', '24 hours', 'unknown', false, false{values})
ON CONFLICT DO NOTHING"""
LEASED_INSERT = INSERT.format(columns=", lease, lease_expires_at",
                              values=", '60 s', clock_timestamp() + '60 s'")
PLAIN_INSERT = INSERT.format(columns="", values="")

# What everybody writes first: insert, and if that did nothing, read.
INSERT_FIRST = """
CREATE FUNCTION insert_first(p_scope text, p_key text, p_principal text,
    OUT outcome text, OUT response_code int, OUT response_body text)
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO bare_record (scope, key, principal, state, attempt, token, created_at, claimed_at,
        expires_at, ttl, on_abandon, recovered, progressed)
    VALUES (p_scope, p_key, p_principal, 'processing', 1, gen_random_uuid(), clock_timestamp(),
        clock_timestamp(), clock_timestamp() + '24 hours', '24 hours', 'unknown', false, false)
    ON CONFLICT DO NOTHING;
    IF FOUND THEN
        outcome := 'claimed';
        RETURN;
    END IF;
    SELECT CASE WHEN r.state IN ('succeeded', 'failed') THEN 'replayed' ELSE 'in_progress' END,
            r.response_code, r.response_body
        INTO outcome, response_code, response_body
        FROM bare_record r
        WHERE r.scope = p_scope AND r.key = p_key AND r.principal = p_principal;
END
$$;
"""

SELECT = """SELECT state, response_code, response_body FROM bare_record
WHERE scope = 'order' AND key = 'key-' || :n AND principal = '42';
"""

CALLS = {
    "replay": OLD + "SELECT outcome, response_code, response_body"
                    " FROM idem_claim('order', 'key-' || :n, '42');\n",
    "select": OLD + SELECT,
    "insert_first": OLD + "SELECT outcome, response_code, response_body"
                          " FROM insert_first('order', 'key-' || :n, '42');\n",
    "lookup": OLD + "SELECT outcome, response_code, response_body"
                    " FROM idem_lookup('order', 'key-' || :n, '42');\n",
    "leased_claim": NEW + "SELECT outcome, token"
                          " FROM idem_claim('order', 'new-' || :n, '42', lease => '60 s');\n",
    "bare_leased_claim": NEW + LEASED_INSERT + ";\n",
    "transaction": NEW + """BEGIN;
SELECT outcome, token FROM idem_claim('order', 'new-' || :n, '42');
SELECT idem_finish('order', 'new-' || :n, '42', response_code => 201, response_body => '%s');
COMMIT;
""" % BODY,
    "bare_transaction": NEW + """BEGIN;
%s;
UPDATE bare_record SET state = 'succeeded', finished_at = clock_timestamp(), response_code = 201,
    response_body = '%s' WHERE scope = 'order' AND key = 'new-' || :n AND principal = '42';
COMMIT;
""" % (PLAIN_INSERT, BODY),
    "leased": NEW + """SELECT outcome, token
FROM idem_claim('order', 'new-' || :n, '42', lease => '60 s') \\gset
SELECT idem_finish('order', 'new-' || :n, '42', :token, response_code => 201, response_body => '%s');
""" % BODY,
    "bare_leased": NEW + """%s RETURNING token \\gset
UPDATE bare_record SET state = 'succeeded', finished_at = clock_timestamp(),
    lease_expires_at = NULL, response_code = 201, response_body = '%s'
WHERE scope = 'order' AND key = 'new-' || :n AND principal = '42' AND token = :token;
""" % (LEASED_INSERT, BODY),
}

# name, ours, what it is compared with, target ratio of throughput, writes?
PAIRS = [
    ("claim of a finished key / SELECT by primary key", "replay", "select", 0.85, False),
    ("claim of a finished key / insert-first function", "replay", "insert_first", 2.0, False),
    ("idem_lookup / SELECT by primary key", "lookup", "select", 0.85, False),
    ("fresh leased claim / INSERT ON CONFLICT", "leased_claim", "bare_leased_claim", 0.95, True),
    ("claim + finish in one transaction / INSERT + UPDATE", "transaction", "bare_transaction",
     0.95, True),
    ("leased claim, commit, finish, commit / INSERT, UPDATE", "leased", "bare_leased", 0.95, True),
]
