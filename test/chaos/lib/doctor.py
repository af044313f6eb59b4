"""Histories doctored to be wrong, to see that the checker is not blind.

Each takes honest operations and final states (copies), finds a place where a
lie can be told, and tells just one.  The checker must find it, and name it by
the right kind.
"""

import copy
from dataclasses import replace

from . import verdict


class Unsuitable(Exception):
    """This history has no place for that lie."""


def first(things, what):
    for thing in things:
        return thing
    raise Unsuitable(f"there is no {what}")


def settled(ops, finals):
    """An acknowledged settle, and its final state."""
    op = first((op for op in ops if op.kind == "settle" and op.status == "ok"),
               "acknowledged settle")
    return op, finals[op.scope, op.key]


def abandoned(ops, finals, scope, outcome):
    """A leased claim that was acknowledged and ended so."""
    op = first((op for op in ops if op.kind == "claim" and op.status == "ok" and op.scope == scope
                and op.outcome == "claimed" and finals[op.scope, op.key].outcome == outcome),
               f"claim of scope {scope} that ended {outcome}")
    return op, finals[op.scope, op.key]


def second_effect(ops, finals):
    op, final = settled(ops, finals)
    final.effects.append(op.id)


def second_acknowledgement(ops, finals):
    op, _ = settled(ops, finals)
    ops.append(replace(op, id="doctored"))


def lost_finish(ops, finals):
    op, _ = settled(ops, finals)
    finals[op.scope, op.key] = verdict.Final(next_outcome="claimed", next_attempt=1)


def effect_alone(ops, finals):
    op, final = settled(ops, finals)
    finals[op.scope, op.key] = verdict.Final(effects=final.effects, next_outcome="claimed",
                                             next_attempt=1)


def record_alone(ops, finals):
    _, final = settled(ops, finals)
    final.effects.clear()


def other_bytes(ops, _):
    op = first((op for op in ops if op.digest and op.kind != "settle"), "replay")
    op.digest = "0" * 24


def other_bytes_in_the_end(ops, finals):
    _, final = settled(ops, finals)
    final.digest = final.next_digest = "0" * 24


def absent_after_acknowledgement(ops, finals):
    op, _ = settled(ops, finals)
    ops.append(replace(op, id="doctored", kind="ask", start=op.end + 1, end=op.end + 2,
                       outcome="absent", digest=None, attempt=None))


def failed_effect(ops, finals):
    op, _ = settled(ops, finals)
    op.status = "fail"


def failed_claim(ops, finals):
    op = first((op for op in ops if op.kind == "settle" and op.scope == "tx"
                and op.status == "ok"), "transactional settle")
    for other in ops:
        if (other.scope, other.key, other.kind) == (op.scope, op.key, "settle"):
            other.status = "fail"
    finals[op.scope, op.key].effects.clear()


def forgotten_claim(ops, finals):
    op, _ = abandoned(ops, finals, "unknown", "unknown")
    finals[op.scope, op.key] = verdict.Final(next_outcome="claimed", next_attempt=1)


def unknown_turned_claimed(ops, finals):
    op, _ = abandoned(ops, finals, "unknown", "unknown")
    ops.append(replace(op, id="doctored", start=op.end + 1, end=op.end + 2, token=None,
                       attempt=1 + max(other.attempt or 1 for other in ops if other.key == op.key)))


def unknown_given_away(ops, finals):
    _, final = abandoned(ops, finals, "unknown", "unknown")
    final.next_outcome, final.next_attempt = "claimed", final.attempt + 1


def retry_kept_back(ops, finals):
    _, final = abandoned(ops, finals, "retry", "released")
    final.next_outcome, final.next_attempt = "unknown", final.attempt


def second_owner(ops, finals):
    op, _ = abandoned(ops, finals, "unknown", "unknown")
    ops.append(replace(op, id="doctored", token=None))


def zombie_settled(ops, _):
    op = first((op for op in ops if op.kind == "settle" and op.status == "ok"
                and op.scope == "unknown"), "settle with a lease")
    ops.append(replace(op, id="doctored", kind="takeover", attempt=op.attempt + 1,
                       outcome="claimed", digest=None, start=op.start - 2, end=op.start - 1))


def fenced_for_nothing(ops, _):
    op = first((op for op in ops if op.kind == "settle" and op.scope == "unknown"
                and op.status == "ok" and all(
                    other.attempt == op.attempt for other in ops
                    if other.key == op.key and other.kind in ("claim", "takeover"))),
               "settle with a lease that nobody took over")
    ops.append(replace(op, id="doctored", status="fail", fenced=True))


def unfinished_commit(ops, finals):
    op, _ = settled(ops, finals)
    ops.append(replace(op, id="doctored", kind="forgotten"))


def second_charge(ops, finals):
    op, _ = abandoned(ops, finals, "unknown", "unknown")
    finals[op.scope, op.key].charges = 2


LIES = (
    (second_effect, verdict.DOUBLE),
    (second_acknowledgement, verdict.DOUBLE),
    (lost_finish, verdict.LOST),
    (effect_alone, verdict.HALF),
    (record_alone, verdict.HALF),
    (other_bytes, verdict.ALTERED),
    (other_bytes_in_the_end, verdict.ALTERED),
    (absent_after_acknowledgement, verdict.LOST),
    (failed_effect, verdict.GHOST),
    (failed_claim, verdict.GHOST),
    (forgotten_claim, verdict.LOST),
    (unknown_turned_claimed, verdict.RERUN),
    (unknown_given_away, verdict.POLICY),
    (retry_kept_back, verdict.POLICY),
    (second_owner, verdict.DOUBLE),
    (zombie_settled, verdict.FENCE),
    (fenced_for_nothing, verdict.FENCE),
    (unfinished_commit, verdict.FENCE),
    (second_charge, verdict.DOUBLE),
)


def name_of(lie):
    return lie.__name__.replace("_", " ")


def tell(lie, ops, finals):
    """The kinds of violations that are found once the lie is told."""
    told, state = copy.deepcopy(ops), copy.deepcopy(finals)
    lie(told, state)
    return {violation.kind for violation in verdict.judge(told, state)}
