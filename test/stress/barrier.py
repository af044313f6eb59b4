#!/usr/bin/python3
"""64 sessions meet at one barrier on each of 1,000 keys.

Exactly one of them is told "claimed".  The others are told "in_progress" or,
if they wait, are given the winner's response byte for byte.  The first winners
may roll back: then the next waiter wins.  It is the same at every isolation
level, with no serialization failure, although at REPEATABLE READ and above
every session has taken its snapshot at the barrier, before anybody claimed.
"""

import collections
import random

import psycopg

from lib import tap
from lib.crowd import GATE, Crowd, error_of, rows_of

SESSIONS = 64
KEYS = 1000

READ_COMMITTED, REPEATABLE_READ, SERIALIZABLE = LEVELS = (
    "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")
MIXED = "mixed levels"

# In each group of four winners of the mode "rollback", the first three fail.
LOSERS = 3

SETUP = """
CREATE TABLE effect (key text NOT NULL, pid int NOT NULL DEFAULT pg_backend_pid());
CREATE SEQUENCE winner;
CREATE TYPE answer AS (outcome text, response text);

-- A response as the client sees it: everything that is stored.
CREATE FUNCTION shown(code int, body text, headers jsonb, bytes bytea) RETURNS text
LANGUAGE sql IMMUTABLE AS
$$ SELECT concat_ws('|', code, body, headers, encode(bytes, 'hex')) $$;

-- A handler: claim, work, store the answer.
CREATE FUNCTION serve(k text, wait interval, fails boolean) RETURNS answer
LANGUAGE plpgsql AS $$
DECLARE
    claim record;
    code int := 200 + pg_backend_pid() % 100;
    body text := repeat(md5(random()::text), 1 + pg_backend_pid() % 200) || E' \\u00e9\\n ';
    headers jsonb := jsonb_build_object('pid', pg_backend_pid(), 'at', clock_timestamp());
BEGIN
    SELECT * INTO claim FROM idem_claim('barrier', k, request => '{"n": 1}', lease => '0',
        wait => serve.wait);
    IF claim.outcome <> 'claimed' THEN
        RETURN ROW(claim.outcome, shown(claim.response_code, claim.response_body,
            claim.response_headers, claim.response_bytes))::answer;
    END IF;
    INSERT INTO effect VALUES (k);
    PERFORM pg_sleep(0.001);
    IF fails AND nextval('winner') % 4 <> 0 THEN
        RAISE 'the handler failed' USING ERRCODE = 'ZZ001';
    END IF;
    PERFORM idem_finish('barrier', k, token => claim.token, response_code => code,
        response_body => body, response_headers => headers);
    RETURN ROW('claimed'::text, shown(code, body, headers, NULL))::answer;
END $$;
"""

# Each mode: what a session runs, and what the 64 answers may be.
MODES = {
    "leased": """SELECT outcome, NULL FROM idem_claim('barrier', '{key}',
                 request => '{{"n": 1}}', lease => '1 day')""",
    "no wait": "SELECT * FROM serve('{key}', '0', false)",
    "wait": "SELECT * FROM serve('{key}', '100 s', false)",
    "rollback": "SELECT * FROM serve('{key}', '100 s', true)",
}
ALLOWED = {
    "leased": {"in_progress"},
    "no wait": {"in_progress", "replayed"},
    "wait": {"replayed"},
    "rollback": {"replayed"},
}


def level_of(level, session):
    return LEVELS[session % len(LEVELS)] if level == MIXED else level


def text_for(mode, level, key, session):
    return (f"ROLLBACK; BEGIN ISOLATION LEVEL {level_of(level, session)}; {GATE}; "
            + MODES[mode].format(key=key) + "; COMMIT")


def verdict_of(results):
    """What a session was told: (outcome, response), or (SQLSTATE, None)."""
    for result in results:
        if error_of(result):
            return error_of(result), None
    return tuple(rows_of(results[-2])[0])


def faults_of(mode, told):
    """What is wrong with the answers of all sessions to one key."""
    count = collections.Counter(outcome for outcome, _ in told)
    responses = {response for outcome, response in told if outcome in ("claimed", "replayed")}
    others = set(count) - {"claimed", "ZZ001"}

    if count["claimed"] != 1:
        yield f"{count['claimed']} sessions were told claimed"
    if count["ZZ001"] != (LOSERS if mode == "rollback" else 0):
        yield f"{count['ZZ001']} handlers failed"
    if not others <= ALLOWED[mode]:
        yield f"unexpected answers {sorted(others - ALLOWED[mode])}"
    if len(responses) != 1:
        yield f"{len(responses)} different responses"


def rounds():
    """Every mode at every level in turn, over all keys."""
    for n in range(tap.scaled(KEYS)):
        mode = list(MODES)[n % len(MODES)]
        yield f"key-{n}", mode, (*LEVELS, MIXED)[n // len(MODES) % 4]


def run(crowd, rng):
    faults = collections.defaultdict(list)
    totals = collections.defaultdict(collections.Counter)
    for key, mode, level in rounds():
        texts = [text_for(mode, level, key, i) for i in range(SESSIONS)]
        rng.shuffle(texts)
        told = [verdict_of(results) for results in crowd.meet(texts).values()]
        totals[mode].update(outcome for outcome, _ in told)
        faults[mode, level] += [f"{key}: {fault}" for fault in faults_of(mode, told)]
    return faults, totals


def main():
    tap.begin()
    with psycopg.connect("", autocommit=True) as db:
        db.execute(SETUP)
        crowd = Crowd(SESSIONS)
        faults, totals = run(crowd, random.Random(tap.SEED))
        crowd.close()

        for (mode, level), found in sorted(faults.items()):
            tap.none(found, f"{mode}, {level.lower()}: one is claimed, the others as they should")
        for mode, count in totals.items():
            tap.note(f"{mode}: " + ", ".join(f"{n} {what}" for what, n in count.most_common()))

        keys = list(rounds())
        tap.equal(sum(count["claimed"] for count in totals.values()), len(keys),
                  f"as many claimed as there are keys ({len(keys)})")
        tap.equal(db.execute("SELECT count(*), count(DISTINCT key) FROM effect").fetchone(),
                  (sum(mode != "leased" for _, mode, _ in keys),) * 2,
                  "one effect per key is in the database")
        tap.equal(db.execute("SELECT count(*), max(attempt) FROM idem_record").fetchone(),
                  (len(keys), 1), "one record per key, all at attempt 1")
    tap.finish()


if __name__ == "__main__":
    main()
