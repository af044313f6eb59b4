"""The checker: what the histories and the final state must agree upon.

It sees the operations of all clients as they wrote them down, and what the
database and the provider say in the end; it knows nothing of the faults.  For
each key it demands:

    acknowledged    A settle that was acknowledged has its effect once, and every
                    answer since replays its response byte for byte.
    unknown         One whose answer was lost has its effect once or not at all,
                    and the record tells which.
    failed          One that is known to have failed has left nothing: no effect,
                    and of a transactional claim no record either.
    claimed         A leased claim that was acknowledged is never forgotten, is
                    nobody else's, and if nobody finishes it ends as its policy
                    says: nobody gets an "unknown" before it was released.

Violations have a kind, because not all are the same after the loss of a
server: what it had not sent to its standby may be "lost", but must not be
anything else.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Optional

LOST = "lost"                   # acknowledged, and gone
DOUBLE = "double"               # done twice, or owned by two
ALTERED = "altered"             # replayed with other bytes
GHOST = "ghost"                 # it failed, and is there
HALF = "half"                   # effect without record, or record without effect
RERUN = "rerun"                 # given away although unknown
POLICY = "policy"               # abandoned, and not as on_abandon says
FENCE = "fence"                 # refused without a cause, or not refused

LEASED = ("unknown", "retry")


@dataclass(frozen=True)
class Violation:
    kind: str
    scope: str
    key: str
    text: str

    def __str__(self):
        return f"{self.kind}: {self.scope}/{self.key}: {self.text}"


@dataclass
class Final:
    """What is there in the end."""
    outcome: str = "absent"
    attempt: Optional[int] = None
    digest: Optional[str] = None
    effects: list = field(default_factory=list)         # the operations that left one
    charges: int = 0
    next_outcome: str = ""                              # of a claim made after all
    next_attempt: Optional[int] = None
    next_digest: Optional[str] = None


class Case:
    """One key: its operations by kind, and its final state."""

    def __init__(self, scope, key, ops, final):
        self.scope, self.key, self.final = scope, key, final
        by_kind = defaultdict(list)
        for op in ops:
            by_kind[op.kind].append(op)
        self.settles, self.releases = by_kind["settle"], by_kind["release"]
        self.grants = [op for op in by_kind["claim"] + by_kind["takeover"]]
        self.forgotten = by_kind["forgotten"]
        self.answers = [op for op in by_kind["ask"] + self.grants if op.outcome is not None]
        self.owned = [op for op in self.grants if op.status == "ok" and op.outcome == "claimed"]
        self.violations = []

    def found(self, kind, text):
        self.violations.append(Violation(kind, self.scope, self.key, text))

    def check(self):
        for rule in RULES:
            rule(self)
        return self.violations


def may_have_happened(ops):
    return [op for op in ops if op.status != "fail"]


def acknowledged(ops):
    return [op for op in ops if op.status == "ok"]


def one_effect(case):
    if len(case.final.effects) > 1:
        case.found(DOUBLE, f"effects of {case.final.effects}")
    if len(acknowledged(case.settles)) > 1:
        case.found(DOUBLE, f"acknowledged: {[op.id for op in acknowledged(case.settles)]}")


def effects_have_an_author(case):
    possible = {op.id for op in may_have_happened(case.settles)}
    for effect in case.final.effects:
        if effect not in possible:
            case.found(GHOST, f"an effect of {effect}, which failed")


def acknowledged_is_kept(case):
    for op in acknowledged(case.settles):
        if op.id not in case.final.effects or case.final.outcome != "replayed":
            case.found(LOST, f"{op.id} was acknowledged ({op.via}); now {case.final.outcome}, "
                             f"effects {case.final.effects}")
        elif case.final.digest != op.digest:
            case.found(ALTERED, f"{op.id} stored another response")


def record_tells(case):
    """The record replays if and only if there is an effect, and its author's response."""
    replays = case.final.outcome == "replayed"
    if replays != bool(case.final.effects):
        case.found(HALF, f"{case.final.outcome}, effects {case.final.effects}")
    responses = {op.id: op.digest for op in case.settles}
    for effect in case.final.effects if replays else ():
        if responses.get(effect) not in (None, case.final.digest):
            case.found(HALF, f"the effect of {effect}, the response of another")


def replays_are_equal(case):
    for answer in case.answers:
        if answer.digest is None:
            continue
        authors = [op for op in may_have_happened(case.settles)
                   if op.digest == answer.digest and op.start < answer.end]
        if not authors:
            case.found(ALTERED, f"{answer.id} was given a response that nobody stored")
        elif answer.digest == case.final.digest or all(op.local for op in authors):
            continue
        elif case.final.digest is None:
            case.found(LOST, f"{answer.id} was given a response that is gone")
        else:
            case.found(ALTERED, f"{answer.id} was given another response than in the end")


def answers_after(case, op):
    return [answer for answer in case.answers if answer is not op and answer.start > op.end]


def settled_is_replayed(case):
    for op in acknowledged(case.settles):
        for answer in answers_after(case, op):
            if answer.outcome != "replayed":
                case.found(LOST, f"{op.id} was acknowledged, then {answer.id} "
                                 f"was told {answer.outcome}")


def claim_is_kept(case):
    for op in case.owned:
        if case.final.outcome == "absent" or case.final.attempt < op.attempt:
            case.found(LOST, f"{op.id} had claimed attempt {op.attempt}; now "
                             f"{case.final.outcome}, attempt {case.final.attempt}")
        for answer in answers_after(case, op):
            if answer.outcome == "absent" or (answer.attempt or op.attempt) < op.attempt:
                case.found(LOST, f"{op.id} had claimed attempt {op.attempt}, then {answer.id} "
                                 f"was told {answer.outcome}, attempt {answer.attempt}")


def one_owner(case):
    """Except that the same claim_token may ask again."""
    owners = {}
    for op in case.owned:
        first = owners.setdefault(op.attempt, op)
        if first is not op and (op.token is None or op.token != first.token):
            case.found(DOUBLE, f"{first.id} and {op.id} both own attempt {op.attempt}")


def unknown_stays_unknown(case):
    """A claim gets another attempt only where that was said to have done nothing."""
    if case.scope != "unknown":
        return
    for op in case.owned:
        if op.kind == "claim" and op.attempt > 1 and not any(
                release.attempt == op.attempt - 1 and release.start < op.end
                for release in may_have_happened(case.releases)):
            case.found(RERUN, f"{op.id} was given attempt {op.attempt}, which nobody released")


def abandoned_as_its_policy_says(case):
    final = case.final
    if case.scope not in LEASED or final.outcome in ("absent", "replayed"):
        return
    allowed = {"in_progress": "in_progress"}
    if case.scope == "retry":
        allowed["released"] = "claimed"
    else:
        allowed["unknown"] = "unknown"
        if may_have_happened(case.releases):
            allowed["released"] = "claimed"
    if allowed.get(final.outcome) != final.next_outcome:
        case.found(POLICY, f"{final.outcome}, and the next claim {final.next_outcome}")
    elif final.next_outcome == "claimed" and final.next_attempt != final.attempt + 1:
        case.found(POLICY, f"attempt {final.attempt}, then {final.next_attempt}")


def nothing_is_left(case):
    """Of transactions that failed."""
    final = case.final
    if case.scope in LEASED:
        if not may_have_happened(case.grants) and final.outcome != "absent":
            case.found(GHOST, f"nobody claimed it, but it is {final.outcome}")
    elif final.outcome != "absent" and not may_have_happened(case.settles):
        case.found(GHOST, f"every transaction failed, but it is {final.outcome}")
    elif final.outcome not in ("absent", "replayed"):
        case.found(GHOST, f"a transactional claim that is {final.outcome}")


def absent_is_free(case):
    final = case.final
    if final.outcome == "absent" and (final.next_outcome, final.next_attempt) != ("claimed", 1):
        case.found(POLICY, f"absent, and the next claim {final.next_outcome}")
    if final.outcome == "replayed" and (final.next_outcome, final.next_digest) != (
            "replayed", final.digest):
        case.found(ALTERED, "lookup and claim replay differently")


def commits_are_finished(case):
    for op in acknowledged(case.forgotten):
        case.found(FENCE, f"{op.id} committed an unfinished claim")


def fenced_for_a_reason(case):
    """Somebody else had the right, and only then."""
    for op in case.settles:
        others = [grant for grant in may_have_happened(case.grants)
                  if grant.start < (op.end or 0) and (grant.attempt or op.attempt + 1) > op.attempt]
        if op.fenced and not others:
            gone = case.final.outcome == "absent" or case.final.attempt < op.attempt
            case.found(LOST if gone else FENCE, f"{op.id} was refused, but nobody had taken over")
        if op.already and not [earlier for earlier in may_have_happened(case.settles)
                               if earlier is not op and earlier.attempt == op.attempt]:
            case.found(FENCE, f"{op.id} was told that it had finished, but nobody had")
        if op.status == "ok" and case.scope in LEASED:
            for grant in case.owned:
                if grant.attempt > op.attempt and grant.end < op.start:
                    case.found(FENCE, f"{op.id} settled attempt {op.attempt} after {grant.id} "
                                      f"had attempt {grant.attempt}")


def charged_once(case):
    if case.scope not in LEASED:
        return
    if case.final.charges > 1:
        case.found(DOUBLE, f"charged {case.final.charges} times")
    if case.final.outcome == "replayed" and case.final.charges == 0:
        case.found(HALF, "settled, but never charged")


RULES = (
    one_effect, effects_have_an_author, acknowledged_is_kept, record_tells, replays_are_equal,
    settled_is_replayed, claim_is_kept, one_owner, unknown_stays_unknown,
    abandoned_as_its_policy_says, nothing_is_left, absent_is_free, commits_are_finished,
    fenced_for_a_reason, charged_once)


def judge(ops, finals):
    """All violations.  finals: (scope, key) -> Final, of every key that is anywhere."""
    by_key = defaultdict(list)
    for op in ops:
        by_key[op.scope, op.key].append(op)
    violations = []
    for scope, key in sorted(by_key.keys() | finals.keys()):
        final = finals.get((scope, key), Final())
        violations += Case(scope, key, by_key[scope, key], final).check()
    return violations
