#!/usr/bin/python3
"""Everything at once on a few shared keys, checked against a model.

Clients claim, finish, extend, checkpoint, assert, take over, resolve, forget,
once and execute the same keys, alone and in transactions with savepoints and
rollbacks, at all isolation levels, with tokens that they own and with tokens
that they lost.  Leases and ttls are so short that many run out.  Meanwhile
sessions are cancelled, terminated and cut off, expired records are swept, and
the table is vacuumed and its indexes are rebuilt.

Every change is logged in its own transaction, so lib/model.py can walk through
the changes of each key and say of each whether the protocol allows it, and
whether what the others were told was true at that time.
"""

import collections
import contextlib
import json
import multiprocessing
import random
import threading
import time
import uuid

import psycopg
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from lib import tap
from lib.model import History, Seen, Step, check_seen, digest, digest_of, microseconds
from lib.workers import connect, in_parallel, sever, wire_of

WORKERS = 10
TRANSACTIONS = 1000             # of each worker
KEYS = [f"key-{n}" for n in range(8)]
SCOPE = "races"

LEVELS = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")

# SQLSTATEs that a call may raise when the protocol or the chaos is the cause.
# Which of them fit the moment is the model's business.
ALWAYS = {"57014", "57P01"}
ALLOWED = {
    "claim": {"22023"}, "takeover": set(), "resolve": set(), "lookup": set(),
    "forget": {"55P03"}, "once": {"55006", "55P03"}, "execute": set(),
    "finish": {"ID001", "22023", "55P03"}, "assert": {"ID001", "22023", "55000", "55P03"},
    "extend": {"ID001", "22023", "55000", "55P03"},
    "checkpoint": {"ID001", "22023", "55000", "55P03"},
}

SETUP = """
CREATE TABLE log (tx bigint, key text, kind text, asked_at timestamptz, at timestamptz,
    args jsonb, answer jsonb);
CREATE TABLE executed (key text);
"""

# The change and its log row are one statement; the clock is read after the call.
LOGGED = """
WITH c AS MATERIALIZED (SELECT * FROM {call}),
l AS (INSERT INTO log
      SELECT %(tx)s, %(key)s, %(kind)s, statement_timestamp(), clock_timestamp(), %(args)s, {shown}
      FROM c WHERE {changed})
SELECT * FROM c"""

ROW = "to_jsonb(c)"
LOOKUP = f"(SELECT to_jsonb(x) FROM idem_lookup('{SCOPE}', %(key)s) x)"


def call(function, arguments, result="c", shown=ROW, changed="outcome = 'claimed'"):
    arguments = ", ".join([f"'{SCOPE}'", "%(key)s", *arguments.split("; ")])
    return LOGGED.format(call=f"{function}({arguments}) AS {result}", shown=shown, changed=changed)


RESPONSE = ("response_code => %(code)s::int; response_body => %(body)s::text; "
            "response_headers => %(headers)s::jsonb; response_bytes => %(bytes)s::bytea")

CALLS = {
    "claim": call("idem_claim", "request => %(request)s::jsonb; ttl => %(ttl)s::interval; "
                  "lease => %(lease)s::interval; wait => %(wait)s::interval; "
                  "on_abandon => %(on_abandon)s; claim_token => %(claim_token)s::uuid"),
    "takeover": call("idem_takeover", "lease => %(lease)s::interval; wait => %(wait)s::interval; "
                     "force => %(force)s"),
    "resolve": call("idem_resolve", "state => %(state)s; ttl => %(ttl)s::interval; "
                    "force => %(force)s; " + RESPONSE,
                    changed="outcome = 'released' OR response_body = %(body)s::text"),
    "finish": call("idem_finish", "token => %(token)s::uuid; state => %(state)s; "
                   "ttl => %(ttl)s::interval; " + RESPONSE,
                   "c(told)", LOOKUP, "told"),
    "extend": call("idem_extend", "token => %(token)s::uuid; lease => %(lease)s::interval",
                   "c(until)", changed="true"),
    "checkpoint": call("idem_checkpoint", "token => %(token)s::uuid; checkpoint => %(checkpoint)s; "
                       "checkpoint_data => to_jsonb(%(checkpoint)s::text); "
                       "on_abandon => %(on_abandon)s; lease => %(lease)s::interval",
                       "c(until)", changed="true"),
    "assert": call("idem_assert", "token => %(token)s::uuid", "c(told)", changed="false"),
    "forget": call("idem_forget", "principal => ''", "c(told)", "NULL", "told"),
    "once": call("idem_once", "ttl => %(ttl)s::interval", "c(told)", LOOKUP, "told"),
    "execute": call("idem_execute", "request => %(request)s::jsonb; ttl => %(ttl)s::interval; "
                    "wait => %(wait)s::interval; command => "
                    "'INSERT INTO executed VALUES ($1->>''key'') "
                    "RETURNING md5(random()::text), 200 + (random() * 99)::int'",
                    changed="outcome = 'executed'"),
    "lookup": call("idem_lookup", "principal => ''", changed="false"),
    "effect": """INSERT INTO log VALUES (%(tx)s, %(key)s, 'effect', statement_timestamp(),
                 clock_timestamp(), %(args)s, NULL)""",
}

# What the calls tell that have no outcome and no truth value to return.
TOLD = {"assert": "held", "extend": "renewed", "checkpoint": "renewed"}

MS = 1000


def now():
    return time.time_ns() // 1000


def interval(microseconds_or_none):
    return None if microseconds_or_none is None else f"{microseconds_or_none} microseconds"


def shown_row(row):
    """What an observation says about the record."""
    return {"state": row["state"], "attempt": row["attempt"],
            "checkpoint": row.get("checkpoint"),
            "lease_expires_at": microseconds(row["lease_expires_at"]),
            "expires_at": microseconds(row.get("expires_at")),
            "response": digest_of(row)}


class Broken(Exception):
    """The connection is gone."""


class Abort(Exception):
    """The call failed; its transaction, or savepoint, is to be rolled back."""


class Worker:
    """One client.  What it does is drawn from its own random numbers."""

    def __init__(self, number, seed):
        self.number = number
        self.rng = random.Random(f"{seed}/{number}")
        self.db = None
        self.cutter = None
        self.tokens = {key: [] for key in KEYS}     # owned once, perhaps no longer
        self.claims = []                            # (key, claim arguments) to repeat
        self.seen, self.acks, self.violations = [], {}, []
        self.counts = collections.Counter()

    # -- the connection ----------------------------------------------------

    def connect(self):
        options = "-c client_min_messages=error"
        if self.number % 3 == 0:
            options += " -c statement_timeout=300ms -c lock_timeout=100ms"
        if self.db is None or self.db.closed:
            self.db = connect(application_name="races", row_factory=dict_row, options=options)

    def cut_at_random(self):
        """Shut the socket down under the driver, at some moment from now on."""
        self.cutter = threading.Timer(self.rng.random() * 0.03, sever, [wire_of(self.db)])
        self.cutter.start()

    def execute(self, sql, parameters=None, kind=None, allowed=()):
        """Run it; Abort with the SQLSTATE, or Broken if the connection is gone, which
        the last answer may have outrun.  No SQLSTATE but those allowed may come.
        """
        try:
            return self.db.execute(sql, parameters).fetchall() if parameters else \
                self.db.execute(sql)
        except psycopg.Error as error:
            state = error.sqlstate
            if state and state not in ALWAYS and state not in allowed:
                self.violations.append(f"{kind or sql} raised {state}: {error}")
            # cut off while the answer came, the driver may stumble over itself
            if self.db.closed or state is None:
                self.db.close()
                raise Broken from None
            raise Abort(state, str(error)) from None

    # -- one call ----------------------------------------------------------

    def one(self, kind, key, parameters, args):
        """Make a call and note what came of it.  Returns its row."""
        parameters = {"tx": self.tx, "key": key, "kind": kind, "args": Jsonb(args), **parameters}
        asked = now()
        try:
            row = self.execute(CALLS[kind], parameters, kind, ALLOWED[kind])[0]
        except Abort as abort:
            state, text = abort.args
            if state == "22023" and kind != "claim":
                assert args["token"] is None, text
            elif state not in ALWAYS and state != "55P03":
                self.observe(kind, key, asked, args, state, {})
            if state == "ID001" and self.chance(0.7):       # else a zombie goes on
                self.tokens[key] = [t for t in self.tokens[key] if t != args["token"]]
            raise
        told = TOLD.get(kind) or row.get("outcome") or str(row["told"])
        if self.has_changed(kind, told, args, row):
            self.changed.add(key)
            self.counts[kind, told] += 1
        else:
            self.observe(kind, key, asked, args, told, shown_row(row) if "outcome" in row else {})
        return row

    @staticmethod
    def has_changed(kind, told, args, row):
        """Did the call change the record?"""
        if kind == "resolve":
            return told == "released" or (
                args["body"] is not None and row["response_body"] == args["body"])
        return told in ("claimed", "executed", "renewed", "True")

    def observe(self, kind, key, asked, args, told, row):
        """Keep an answer for the model, unless it is about this transaction's own
        changes, or says only that somebody else is changing the record.
        """
        self.counts[kind, told] += 1
        about_others = told == "in_progress" and row["state"] is None
        if key not in self.changed and not about_others:
            self.seen.append(Seen(key, kind, asked, now(), args, told, row))

    def chance(self, probability):
        return self.rng.random() < probability

    def length(self, short):
        """A duration that is over soon, or never during this test."""
        if self.chance(short):
            return self.rng.randrange(1 * MS, 40 * MS)
        return self.rng.randrange(1_000 * MS, 600_000 * MS)

    def ttl(self):
        return self.length(short=0.8)

    def any_token(self, key):
        """Mostly the one of the last claim; or an older one, which is lost by now."""
        tokens = self.tokens[key]
        return tokens[-1] if self.chance(0.8) else self.rng.choice(tokens)

    def new_uuid(self):
        return uuid.UUID(int=self.rng.getrandbits(128), version=4)

    def own(self, key, token):
        self.tokens[key] = [*self.tokens[key][-5:], token]

    def request(self, key):
        variant = self.rng.choices((1, 2, None), (40, 2, 1))[0]
        return None if variant is None else json.dumps({"key": key, "n": variant})

    def response(self, state):
        """A response to store, of any of the forms and up to beyond what is kept inline."""
        if state not in ("succeeded", "failed"):
            return {"code": None, "body": None, "headers": None, "bytes": None}
        size = self.rng.choice((0, 100, 500, 2000, 9000))
        text = f"{self.rng.getrandbits(64):x}:"
        text += "".join(self.rng.choices("abcdefgh \u00e9\n", k=size))
        headers = {"tx": self.tx} if self.chance(0.5) else None
        if self.chance(0.2):
            return {"code": self.rng.randrange(200, 600), "body": None, "headers": headers,
                    "bytes": text.encode()}
        return {"code": None if self.chance(0.1) else self.rng.randrange(200, 600),
                "body": text, "headers": headers, "bytes": None}

    def store(self, response):
        """As parameters, and as what the log and the model know of it."""
        headers = response["headers"]
        return ({**response, "headers": None if headers is None else Jsonb(headers)},
                {"response": digest(*response.values()), "body": response["body"]})

    # -- the calls ---------------------------------------------------------

    def lease(self):
        """A transactional claim in autocommit could not be finished."""
        return 0 if self.in_block and self.chance(0.5) else self.length(short=0.5)

    def renewal(self):
        """Length of a renewed lease; None is the length last given."""
        return self.length(short=0.5) if self.chance(0.8) else None

    def claim(self, key, lease=None, again=None):
        request, ttl = self.request(key), self.ttl()
        lease = self.lease() if lease is None else lease
        token = str(self.new_uuid()) if lease and self.chance(0.4) else None
        args = {"fingerprint": request, "ttl": ttl, "lease": lease, "claim_token": token,
                "on_abandon": self.rng.choice(("unknown", "retry", "retry"))}
        args = again or args
        if args["claim_token"]:
            self.own(key, args["claim_token"])      # the answer may get lost
            self.claims = [*self.claims[-7:], (key, args)]
        row = self.one("claim", key, {
            "request": args["fingerprint"], "ttl": interval(args["ttl"]),
            "lease": interval(args["lease"]), "wait": self.wait(),
            "on_abandon": args["on_abandon"], "claim_token": args["claim_token"]}, args)
        self.granted(key, row, args["lease"])

    def claim_again(self, key):
        """A retry of a claim: the same arguments, the same claim_token."""
        again = [args for k, args in self.claims if k == key]
        if again:
            self.claim(key, again=self.rng.choice(again))

    def wait(self):
        return interval(self.rng.randrange(1 * MS, 60 * MS) if self.chance(0.2) else 0)

    def granted(self, key, row, lease):
        if row["outcome"] != "claimed":
            return
        self.own(key, str(row["token"]))
        if not lease:
            self.open[key] = str(row["token"])
        if self.chance(0.3):
            self.note_effect(key, str(row["token"]))

    def takeover(self, key):
        lease = self.lease()
        args = {"lease": lease, "force": self.chance(0.2)}
        row = self.one("takeover", key, {"lease": interval(lease), "wait": self.wait(),
                                         "force": args["force"]}, args)
        self.granted(key, row, lease)

    def resolve(self, key):
        state = self.rng.choice(("succeeded", "failed", "released"))
        response = self.response(state)
        if response["bytes"] is not None:
            response.update(bytes=None, body=response["bytes"].decode())
        parameters, args = self.store(response)
        args.update(state=state, ttl=self.ttl() if self.chance(0.2) else None,
                    force=self.chance(0.2))
        self.one("resolve", key, {**parameters, "state": state, "ttl": interval(args["ttl"]),
                                  "force": args["force"]}, args)

    def finish(self, key, token=None):
        state = self.rng.choices(("succeeded", "failed", "released", "unknown"), (5, 2, 2, 1))[0]
        parameters, args = self.store(self.response(state))
        if token is None and not (key in self.changed and self.chance(0.5)):
            token = self.any_token(key)
        args.update(token=token, state=state, ttl=self.ttl() if self.chance(0.2) else None)
        row = self.one("finish", key, {**parameters, "token": token, "state": state,
                                       "ttl": interval(args["ttl"])}, args)
        if row["told"]:
            self.open.pop(key, None)

    def extend(self, key):
        args = {"token": self.any_token(key), "lease": self.renewal()}
        self.one("extend", key, {"token": args["token"], "lease": interval(args["lease"])}, args)

    def checkpoint(self, key):
        args = {"token": self.any_token(key), "lease": self.renewal(),
                "checkpoint": f"step {self.rng.randrange(1 << 30)}",
                "on_abandon": self.rng.choice(("unknown", "retry", None))}
        self.one("checkpoint", key, {**args, "lease": interval(args["lease"])}, args)

    def assert_(self, key):
        token = self.any_token(key)
        self.one("assert", key, {"token": token}, {"token": token})
        if self.in_block:
            time.sleep(self.rng.random() * 0.005)       # a business transaction takes a while
            self.note_effect(key, token)

    def note_effect(self, key, token):
        """A business row under the fence: only where the same transaction holds it."""
        if self.in_block:
            self.execute(CALLS["effect"] + " RETURNING 1", {
                "tx": self.tx, "key": key, "args": Jsonb({"token": token})})

    def forget(self, key):
        if self.one("forget", key, {}, {})["told"]:
            self.open.pop(key, None)

    def once(self, key):
        ttl = self.ttl()
        self.one("once", key, {"ttl": interval(ttl)}, {"ttl": ttl})

    def execute_command(self, key):
        request, ttl = self.request(key), self.ttl()
        self.one("execute", key, {"request": request, "ttl": interval(ttl), "wait": self.wait()},
                 {"fingerprint": request, "ttl": ttl})

    def lookup(self, key):
        self.one("lookup", key, {}, {})

    DEEDS = {claim: 20, claim_again: 5, takeover: 8, resolve: 5, forget: 3, once: 3,
             execute_command: 5, lookup: 8}
    OWNER_DEEDS = {finish: 12, extend: 8, checkpoint: 8, assert_: 8}

    def deed(self, key):
        deeds = {**self.DEEDS, **self.OWNER_DEEDS} if self.tokens[key] else self.DEEDS
        if key in self.open:
            deeds = {**deeds, Worker.finish: 60}
        self.rng.choices(*zip(*deeds.items()))[0](self, key)

    # -- transactions ------------------------------------------------------

    def run(self, transactions):
        for n in range(transactions):
            self.tx = self.number * 1_000_000 + n
            self.changed, self.open, self.in_block, self.cutter = set(), {}, False, None
            self.connect()
            if self.chance(0.03):
                self.cut_at_random()
            try:
                self.rng.choices((self.alone, self.block, self.batch), (10, 8, 1))[0]()
            except Broken:
                pass
            if self.cutter:
                self.cutter.join()
                self.db.close()
        self.db.close()

    def acknowledge(self):
        self.acks[self.tx] = now()

    def alone(self):
        """One call, in autocommit."""
        try:
            self.deed(self.rng.choice(KEYS))
        except Abort:
            return
        self.acknowledge()

    @contextlib.contextmanager
    def transaction(self):
        self.insist(f"BEGIN ISOLATION LEVEL {self.rng.choice(LEVELS)}")
        self.in_block = True
        try:
            yield
            self.end()
        except Abort:
            self.insist("ROLLBACK")

    def insist(self, sql):
        """Even this can be cancelled."""
        while True:
            try:
                return self.execute(sql)
            except Abort as abort:
                if abort.args[0] != "57014":
                    raise

    def block(self):
        """A few calls on one key, some in savepoints, some rolled back."""
        key = self.rng.choice(KEYS)
        with self.transaction():
            for _ in range(self.rng.randrange(1, 6)):
                if self.chance(0.35):
                    self.savepoint(key)
                else:
                    self.deed(key)

    def savepoint(self, key):
        """A call in a savepoint, which is rolled back if it fails, and sometimes if not."""
        before = dict(self.open)
        self.execute("SAVEPOINT s")
        try:
            self.deed(key)
            if self.chance(0.6):
                self.execute("RELEASE s")
                return
        except Abort:
            pass
        self.execute("ROLLBACK TO s")
        self.open = before

    def batch(self):
        """Several keys claimed in any order: never a deadlock."""
        with self.transaction():
            for key in self.rng.sample(KEYS, 3):
                self.claim(key, lease=0)

    def end(self):
        if self.chance(0.1):
            self.execute("ROLLBACK")
            return
        if not self.chance(0.25):
            for key, token in list(self.open.items()):
                self.finish(key, token)
        try:
            self.execute("COMMIT", allowed={"ID002"} if self.open else ())
        except Abort as abort:
            self.counts["COMMIT", abort.args[0]] += 1
            return
        if self.open:
            self.violations.append(f"COMMIT passed with unfinished claims: {self.open}")
        self.acknowledge()


# ---------------------------------------------------------------------------
# What goes on beside the workers until they are done
# ---------------------------------------------------------------------------

def chaos(db, rng):
    """Cancel or terminate one of the workers' sessions."""
    kill = rng.choice(("pg_cancel_backend", "pg_cancel_backend", "pg_terminate_backend"))
    db.execute(f"SELECT {kill}(pid) FROM pg_stat_activity WHERE application_name = 'races' "
               "AND datname = current_database() ORDER BY random() LIMIT 1")
    time.sleep(rng.random() * 0.15)


def sweep(db, rng):
    batch = rng.choice((1, 3, 1000))
    if rng.random() < 0.5:
        db.execute(f"CALL idem_sweep_all({batch})")
    else:
        with db.transaction(force_rollback=rng.random() < 0.3):
            db.execute(f"SET TRANSACTION ISOLATION LEVEL {rng.choice(LEVELS)}")
            db.execute(f"SELECT * FROM idem_sweep({batch})")
    time.sleep(rng.random() * 0.05)


def maintain(db, rng):
    db.execute("VACUUM idem_record")
    if rng.random() < 0.5:
        db.execute("REINDEX TABLE CONCURRENTLY idem_record")
    else:
        db.execute("CREATE INDEX CONCURRENTLY added ON idem_record (state, key)")
        db.execute("DROP INDEX CONCURRENTLY added")
    time.sleep(rng.random() * 0.3)


def work(number, finished):
    worker = Worker(number, tap.SEED)
    try:
        worker.run(tap.scaled(TRANSACTIONS))
    finally:
        with finished.get_lock():
            finished.value += 1
    return worker.seen, worker.acks, worker.violations, worker.counts


def accompany(job, finished):
    """Do the job until the workers have finished.  Returns violations."""
    rng = random.Random(f"{tap.SEED}/{job.__name__}")
    try:
        with connect() as db:
            while finished.value < WORKERS:
                job(db, rng)
    except psycopg.Error as error:
        return [f"{job.__name__} raised {error.sqlstate}: {error}"]
    return []


def run():
    """All of it.  Returns what the workers saw, and everybody's violations."""
    finished = multiprocessing.Value("i", 0)
    results = in_parallel([(work, n, finished) for n in range(WORKERS)]
                          + [(accompany, job, finished) for job in (chaos, sweep, maintain)])
    workers, company = results[:WORKERS], results[WORKERS:]
    seen, acks, violations, counts = [], {}, sum(company, []), collections.Counter()
    for result in workers:
        seen += result[0]
        acks.update(result[1])
        violations += result[2]
        counts += result[3]
    return seen, acks, violations, counts


# ---------------------------------------------------------------------------
# The verdict
# ---------------------------------------------------------------------------

def histories(db, acks):
    steps = {key: [] for key in KEYS}
    for row in db.execute("SELECT tx, key, kind, asked_at, at, args, answer FROM log"):
        row["asked_at"], row["at"] = microseconds(row["asked_at"]), microseconds(row["at"])
        steps[row["key"]].append(Step(**row))
    return {key: History(key, steps[key], acks) for key in KEYS}


def final_rows(db):
    """The records, in the words of the model."""
    requests = [json.dumps({"key": key, "n": n}) for key in KEYS for n in (1, 2)]
    rows = db.execute("""
        SELECT key, state, attempt, token::text, on_abandon, lease_expires_at, expires_at,
            checkpoint, progressed, response_code, response_body, response_headers, response_bytes,
            (extract(epoch FROM ttl) * 1000000)::bigint AS ttl,
            (extract(epoch FROM lease) * 1000000)::bigint AS lease,
            coalesce((SELECT v FROM unnest(%s::text[]) v
                      WHERE idem_fingerprint(v::jsonb) = fingerprint),
                     fingerprint::text) AS fingerprint
        FROM idem_record""", (requests,)).fetchall()
    for row in rows:
        row["response"] = digest_of(row)
        for name in ("lease_expires_at", "expires_at"):
            row[name] = microseconds(row[name])
        for name in ("code", "body", "headers", "bytes"):
            del row["response_" + name]
    return {row.pop("key"): row for row in rows}


# Without these the run would have proved little.
EXPECTED = [
    ("claim", "claimed"), ("claim", "replayed"), ("claim", "in_progress"), ("claim", "mismatch"),
    ("claim", "unknown"), ("takeover", "claimed"), ("takeover", "replayed"),
    ("takeover", "absent"), ("resolve", "replayed"), ("resolve", "released"), ("finish", "True"),
    ("finish", "False"), ("finish", "ID001"), ("extend", "renewed"), ("extend", "ID001"),
    ("checkpoint", "renewed"), ("checkpoint", "ID001"), ("assert", "held"), ("assert", "ID001"),
    ("forget", "True"), ("once", "True"), ("once", "False"), ("once", "55006"),
    ("execute", "executed"), ("execute", "replayed"), ("lookup", "absent"), ("lookup", "replayed"),
    ("lookup", "unknown"), ("lookup", "in_progress"), ("lookup", "released"), ("COMMIT", "ID002"),
]


def judge(db, seen, acks, violations, counts):
    tap.none(violations, "no call raised what it may not")

    keys = histories(db, acks)
    tap.note(f"{sum(len(history.periods) for history in keys.values())} committed versions, "
             f"{len(seen)} answers about them")
    tap.none([text for history in keys.values() for text in history.violations],
             "every change of a record is one that the protocol allows")

    # of a key whose changes made no sense nothing more can be said
    sound = {key: history for key, history in keys.items() if not history.violations}
    wrong = (check_seen(answer, sound[answer.key]) for answer in seen if answer.key in sound)
    tap.none([text for text in wrong if text], "every answer was true when it was given")

    drawn = [token for history in keys.values() for token in history.drawn]
    tap.equal(len(set(drawn)), len(drawn), "no token was drawn twice")

    rows = final_rows(db)
    instant = time.time_ns() // 1000
    tap.none([text for key, history in sound.items()
              for text in history.check_row(rows.get(key), instant)],
             "the records in the table are those that were acknowledged last")
    tap.equal(*db.execute("""
        SELECT (SELECT count(*) FROM executed) AS a,
               (SELECT count(*) FROM log WHERE kind = 'execute') AS b""").fetchone().values(),
              "a command ran exactly as often as a call was told so")
    judge_variety(counts)


def judge_variety(counts):
    for kind in sorted({kind for kind, _ in counts}):
        tap.note(f"{kind}: " + ", ".join(
            f"{n} {told}" for (k, told), n in sorted(counts.items()) if k == kind))
    if tap.SCALE >= 1:
        tap.equal([pair for pair in EXPECTED if not counts[pair]], [],
                  "every kind of answer was seen")


STARTED = "SELECT pg_postmaster_start_time() AS at, pg_backend_pid() AS pid"


def main():
    tap.begin()
    with psycopg.connect("", autocommit=True, row_factory=dict_row) as db:
        db.execute(SETUP)
        started = db.execute(STARTED).fetchone()
        result = run()
        # a crash anywhere would have taken this session with it
        tap.equal(db.execute(STARTED).fetchone(), started, "the server has not crashed")
        judge(db, *result)
    tap.finish()


if __name__ == "__main__":
    main()
