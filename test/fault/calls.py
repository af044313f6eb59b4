"""The calls that faults are injected into, one for each way through the code.

A call runs on a record of its own: %(k)s is the key, %(t)s the token that the
record's claim was given, %(wait)s how long a call may wait, and %(gid)s a name
for its transaction if that is prepared.  `passes` are the points (src/fault.c) on its way.  They are compared with the points that it
does pass, so that a step which is added, moved or lost is noticed here.
"""

from dataclasses import dataclass

TOKEN = "00000000-0000-4000-8000-000000000001"

INSERT = ("after probe", "after heap insert", "after index insert", "before confirm",
          "after confirm")
READ = ("between leaf and heap", "after probe")
LOCK = (*READ, "after lock")
UPDATE = (*LOCK, "after heap update", "after index insert")
WAIT = (*READ, "in wait")
DELETE = (*READ, "after heap delete")

ALL = ("autocommit", "block", "savepoint")
IN_BLOCK = ("block", "savepoint")


@dataclass(frozen=True)
class Call:
    name: str
    sql: str                # the last statement's answer counts
    answer: str             # its first column, or the SQLSTATE of an error
    passes: tuple
    setup: str = ""         # what is committed before
    holder: str = ""        # what another session holds uncommitted meanwhile
    stalled: bool = False   # that session stands between heap tuple and confirmation
    modes: tuple = ALL
    end: str = "COMMIT"     # how the transaction ends
    piecemeal: bool = False  # commits by itself as it goes


def call(name, sql, answer, passes, *setup, **options):
    return Call(name, sql, answer, passes, ";".join(setup), **options)


LEASED = "SELECT idem_claim('fault', %(k)s, lease => '1 hour', claim_token => %(t)s)"
RETRYABLE = ("SELECT idem_claim('fault', %(k)s, lease => '1 hour', claim_token => %(t)s, "
             "on_abandon => 'retry')")
FINISHED = "SELECT idem_finish('fault', %(k)s, token => %(t)s, response_body => 'done')"
RELEASED = "SELECT idem_finish('fault', %(k)s, token => %(t)s, state => 'released')"
SEEN = "SELECT idem_once('fault', %(k)s)"
LAPSED = ("UPDATE idem_record SET lease_expires_at = lease_expires_at - interval '2 hours' "
          "WHERE key = %(k)s")
EXPIRED = "UPDATE idem_record SET expires_at = expires_at - interval '90 days' WHERE key = %(k)s"

CLAIM = "SELECT outcome FROM idem_claim('fault', %(k)s, lease => '1 hour', wait => %(wait)s)"
UNIT = ("SELECT idem_claim('fault', %(k)s); "
        "SELECT idem_finish('fault', %(k)s, response_body => 'done')")
EXTEND = "SELECT idem_extend('fault', %(k)s, token => %(t)s) IS NOT NULL"
TAKEOVER = "SELECT outcome FROM idem_takeover('fault', %(k)s, lease => '1 hour', wait => %(wait)s)"
BATCH = ("SELECT count(*) FROM idem_once_batch('fault', "
         "ARRAY[%(k)s || ' a', %(k)s || ' b', %(k)s || ' c'])")
EXECUTE = """SELECT outcome FROM idem_execute('fault', %(k)s, request => to_jsonb(%(k)s::text),
    command => 'INSERT INTO effect VALUES ($1 #>> ''{}'') RETURNING ''done''')"""
LOOKUP = "SELECT outcome FROM idem_lookup('fault', %(k)s)"
FORGET = "SELECT idem_forget('fault', %(k)s)"
SWEEP = "SELECT deleted FROM idem_sweep()"
# Changed, so that the next call reads it.
POLICY = ("DELETE FROM idem_policy; "
          "INSERT INTO idem_policy (scope, ttl) VALUES ('fault', interval '1 day')")
EMPTY = "DELETE FROM idem_record"
ANOTHER_EXPIRED = ("SELECT idem_once('fault', %(k)s || ' too')",
                   "UPDATE idem_record SET expires_at = expires_at - interval '90 days' "
                   "WHERE key = %(k)s || ' too'")

CALLS = [
    call("claim", CLAIM, "claimed", INSERT),
    call("claim by a policy", CLAIM, "claimed", ("in policy", *INSERT), POLICY,
         modes=("autocommit", "block")),
    call("claim and finish", UNIT, "True",
         (*INSERT, "between leaf and heap", "after heap update", "at commit"), modes=IN_BLOCK),
    call("claim and finish, prepared", UNIT, "True",
         (*INSERT, "between leaf and heap", "after heap update", "at prepare"), modes=IN_BLOCK,
         end="PREPARE TRANSACTION %(gid)s"),
    call("claim of a settled key", CLAIM, "replayed", READ, LEASED, FINISHED),
    call("claim with another request",
         "SELECT outcome FROM idem_claim('fault', %(k)s, request => '1')", "mismatch", READ, SEEN),
    call("claim of a released key", CLAIM, "claimed", UPDATE, LEASED, RELEASED),
    call("claim of an abandoned key", CLAIM, "claimed", UPDATE, RETRYABLE, LAPSED),
    call("claim of an expired key", CLAIM, "claimed", UPDATE, LEASED, FINISHED, EXPIRED),
    call("claim repeated", LEASED.replace("idem_claim", "outcome FROM idem_claim"), "claimed",
         UPDATE, LEASED),
    call("claim of a leased key", CLAIM, "in_progress", WAIT, LEASED),
    call("claim of a held key", CLAIM, "in_progress", WAIT, holder=LEASED),
    call("claim of a key being inserted", CLAIM, "in_progress", WAIT, holder=LEASED,
         stalled=True),
    call("takeover", TAKEOVER, "claimed", UPDATE, LEASED, LAPSED),
    call("takeover of nothing", TAKEOVER, "absent", ("after probe",)),
    call("takeover of a leased key", TAKEOVER, "in_progress", WAIT, LEASED),
    call("resolve", "SELECT outcome FROM idem_resolve('fault', %(k)s, state => 'failed')",
         "replayed", UPDATE, LEASED, LAPSED),
    call("lookup", LOOKUP, "replayed", READ, SEEN),
    call("lookup of nothing", LOOKUP, "absent", ("after probe",)),
    call("finish", FINISHED, "True", UPDATE, LEASED),
    call("finish repeated", FINISHED, "False", READ, LEASED, FINISHED),
    call("finish of a held key", FINISHED, "55P03", WAIT, LEASED, holder=EXTEND),
    call("finish of a lost claim", FINISHED, "ID001", READ, SEEN),
    call("extend", EXTEND, "True", UPDATE, LEASED),
    call("checkpoint", "SELECT idem_checkpoint('fault', %(k)s, token => %(t)s, "
         "checkpoint => 'charging') IS NOT NULL", "True", UPDATE, LEASED),
    call("assert", "SELECT idem_assert('fault', %(k)s, token => %(t)s)", "", LOCK, LEASED),
    call("forget", FORGET, "True", DELETE, LEASED),
    call("forget of a held key", FORGET, "55P03", WAIT, LEASED, holder=EXTEND),
    call("once", SEEN, "True", INSERT),
    call("once of a seen key", SEEN, "False", READ, SEEN),
    call("once of an expired key", SEEN, "True",
         (*LOCK, "after heap update", "after index insert"), SEEN, EXPIRED),
    call("once of a held key", SEEN, "55P03", WAIT, holder=SEEN),
    call("once of a key being inserted", SEEN, "55P03", WAIT, holder=SEEN, stalled=True),
    call("once, a batch", BATCH, "3", INSERT),
    call("execute", EXECUTE, "executed", (*INSERT, "after heap update", "at commit")),
    call("execute of a settled key", EXECUTE, "replayed", READ,
         EXECUTE, "DELETE FROM effect WHERE key = %(k)s"),
    call("sweep", SWEEP, "2", ("in sweep", "after lock", "after heap delete"),
         EMPTY, SEEN, EXPIRED, *ANOTHER_EXPIRED),
    call("sweep in batches", "CALL idem_sweep_all(1)", "",
         ("in sweep", "after lock", "after heap delete"), EMPTY, SEEN, EXPIRED, *ANOTHER_EXPIRED,
         modes=("autocommit",), piecemeal=True),
]
