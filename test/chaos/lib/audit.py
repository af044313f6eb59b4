"""The final state: every key, as the database and the provider tell it.

A claim follows each lookup, in a transaction that is rolled back, because a
lookup is a promise about the next claim.
"""

from . import calls
from .server import until
from .verdict import Final, LEASED

KEYS = """
    SELECT scope, key FROM idem_record WHERE key LIKE %(mine)s
    UNION SELECT scope, key FROM effect WHERE key LIKE %(mine)s"""

LOOKUPS = f"""
    SELECT k.scope, k.key, a.* FROM unnest(%(scopes)s::text[], %(keys)s::text[]) k (scope, key),
        LATERAL (SELECT {calls.LOOKUP_ROW} FROM idem_lookup(k.scope, k.key, %(principal)s)) a"""

CLAIMS = f"""
    SELECT k.scope, k.key, a.* FROM unnest(%(scopes)s::text[], %(keys)s::text[]) k (scope, key),
        LATERAL (SELECT {calls.ROW} FROM idem_claim(k.scope, k.key, %(principal)s,
            jsonb_build_object('order', k.key, 'amount', 5),
            lease => CASE WHEN k.scope = ANY (%(leased)s) THEN '1 h'::interval END)) a"""

# A lease that is about to lapse could do so between the lookup and the claim.
LAPSING = """
    SELECT count(*) FROM idem_record WHERE key LIKE %(mine)s AND state = 'processing'
        AND lease_expires_at BETWEEN clock_timestamp() AND clock_timestamp() + '10 min'"""

LEFT = "SELECT scope, key, op FROM effect WHERE key LIKE %(mine)s"


def final_state(db, round_name, provider, ops):
    """(scope, key) -> Final."""
    mine = {"mine": f"{round_name}-%"}
    until(lambda: db.execute(LAPSING, mine).fetchone()[0] == 0, "short leases lapse")
    keys = sorted({(op.scope, op.key) for op in ops} | set(db.execute(KEYS, mine).fetchall()))
    finals = {identity: Final() for identity in keys}
    arguments = {"scopes": [scope for scope, _ in keys], "keys": [key for _, key in keys],
                 "principal": calls.PRINCIPAL, "leased": list(LEASED)}
    for scope, key, *row in db.execute(LOOKUPS, arguments):
        final, answer = finals[scope, key], calls.Answer.of([row])
        final.outcome, final.attempt, final.digest = answer.outcome, answer.attempt, answer.digest
    with db.transaction(force_rollback=True):
        for scope, key, *row in db.execute(CLAIMS, arguments):
            final, answer = finals[scope, key], calls.Answer.of([row])
            final.next_outcome, final.next_attempt = answer.outcome, answer.attempt
            final.next_digest = answer.digest
    for scope, key, op in db.execute(LEFT, mine):
        finals[scope, key].effects.append(op)
    scope_of = {key: scope for scope, key in keys}
    for reference in provider.charges():
        key = reference.split(".")[0]
        finals[scope_of[key], key].charges += 1
    return finals
