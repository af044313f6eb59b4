"""What a key may go through: the protocol as a sequential model, and the
checker that holds a concurrent run against it.

The log.  Every call of a test that changed a record inserts a row into the
table "log" in the same transaction, after the call.  The change holds the
record from the call until that transaction ends, so for one key the rows that
were committed are, in the order of their clock, exactly the changes in the
order in which they took effect: a linearization that no killed client and no
lost answer can make doubtful.  apply() walks it and knows what each step may
be.  Deletions by the sweep are not in the log; but the sweep may delete only
what is expired, and expired is absent to every step.

The observations.  Calls that changed nothing were told something about the
record: "replayed", "absent", ID001 and so on.  Clients and server share one
clock, so a client knows when it asked and when it was answered.  A version was
certainly the live one from when its commit was acknowledged until the next
change was made; it was possibly the live one from when it was made until the
next commit was acknowledged.  An answer must fit one possible version, and
must not contradict a version that was certain from question to answer.

Times are in microseconds.
"""

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Optional

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
NEVER = 1 << 62

SETTLED = ("succeeded", "failed")


def microseconds(when):
    """Of a timestamp as psycopg or as JSON shows it; None stays None."""
    if when is None:
        return None
    if isinstance(when, str):
        when = datetime.fromisoformat(when)
    return (when - EPOCH) // timedelta(microseconds=1)


def digest(code, body, headers, data):
    """A stored response, to be compared byte for byte."""
    if isinstance(data, str):
        data = bytes.fromhex(data[2:])
    parts = [code, body, headers, data.hex() if data is not None else None]
    return hashlib.md5(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def digest_of(row):
    return digest(row["response_code"], row["response_body"],
                  row["response_headers"], row["response_bytes"])


NO_RESPONSE = digest(None, None, None, None)


@dataclass(frozen=True)
class Version:
    """A record as one step left it."""

    state: str
    attempt: int
    token: Optional[str]            # None: known to nobody
    fingerprint: Optional[str]
    ttl: int
    on_abandon: str
    lease: Optional[int]
    lease_expires_at: Optional[int]
    expires_at: Optional[int]
    checkpoint: Optional[str] = None
    progressed: bool = False
    response: str = NO_RESPONSE

    def lapsed(self, now):
        return (self.state == "processing" and self.lease_expires_at is not None
                and self.lease_expires_at <= now)

    def expired(self, now):
        if self.expires_at is None or self.expires_at > now:
            return False
        return (self.state in SETTLED or self.state == "released"
                or (self.lapsed(now) and self.on_abandon == "retry"))

    def undecided(self, now):
        return (self.state == "unknown"
                or (self.lapsed(now) and self.on_abandon == "unknown"))

    def free(self, now):
        return self.state == "released" or (self.lapsed(now) and self.on_abandon == "retry")

    def unfinished(self):
        return self.state == "processing" and self.lease is None


@dataclass(frozen=True)
class Step:
    """A row of the log."""

    tx: int
    key: str
    kind: str
    asked_at: int
    at: int
    args: dict
    answer: dict

    def clock(self, name):
        return microseconds(self.answer[name])

    def around(self, time, length):
        """Is that time the moment of the call plus length?"""
        return self.asked_at + length <= time <= self.at + length


class Illegal(Exception):
    """A step that the protocol does not allow."""


def require(condition, what):
    if not condition:
        raise Illegal(what)


# ---------------------------------------------------------------------------
# Steps
# ---------------------------------------------------------------------------

def _grant(step, before, now, **changes):
    """The version that a new attempt starts with."""
    answer = step.answer
    require(answer["state"] == "processing", "a claimed record is not processing")
    require(answer["recovered"] == (before is not None and before.state != "released"),
            "recovered is wrong")
    lease = step.args["lease"] or None
    until = step.clock("lease_expires_at")
    require(until == (now + lease if lease else None), "the lease is not as long as asked for")
    return Version(
        state="processing", attempt=answer["attempt"], token=answer["token"], lease=lease,
        lease_expires_at=until, expires_at=step.clock("expires_at"),
        checkpoint=before.checkpoint if before else None, **changes)


def _follows(step, before, now):
    """The version that a claim goes on from; None where a new life begins."""
    if before is None or before.expired(now):
        require(step.answer["attempt"] == 1, "a new life does not begin with attempt 1")
        return None
    require(step.answer["attempt"] == before.attempt + 1,
            f"attempt {step.answer['attempt']} follows attempt {before.attempt}")
    require(before.free(now), f"claimed a record that is {before.state}, not to be had")
    require(before.fingerprint == step.args["fingerprint"], "claimed with another request")
    return before


def _begins_anew(step, before):
    """Once a record is swept, nobody remembers which claim_token it had."""
    return before.expired(step.at) and step.around(step.clock("expires_at"), step.args["ttl"])


def _repeat(step, before):
    now = step.clock("lease_expires_at") - step.args["lease"]
    require(before.state == "processing" and before.lease is not None
            and before.lease_expires_at > now, "a claim was repeated that has no live lease")
    require(not before.progressed, "a claim was repeated after progress")
    require(before.fingerprint == step.args["fingerprint"], "repeated with another request")
    require((step.answer["attempt"], step.clock("expires_at"))
            == (before.attempt, before.expires_at), "a repeat changed more than the lease")
    return dataclasses.replace(before, lease=step.args["lease"],
                               lease_expires_at=step.clock("lease_expires_at"))


def claim(step, before, own):
    token = step.args["claim_token"]
    if token:
        require(step.answer["token"] == token, "the token is not the claim_token")
        if before and before.token == token and not _begins_anew(step, before):
            return _repeat(step, before)
    require(not (own and before and before.state == "processing"), "claimed its own claim again")
    now = step.clock("expires_at") - step.args["ttl"]
    require(step.around(step.clock("expires_at"), step.args["ttl"]), "the ttl is not as asked for")
    before = _follows(step, before, now)
    require(step.answer["checkpoint"] == (before.checkpoint if before else None),
            "the checkpoint is not the one recorded last")
    return _grant(step, before, now, fingerprint=step.args["fingerprint"],
                  ttl=step.args["ttl"], on_abandon=step.args["on_abandon"])


def _may_take_over(step, before, own):
    require(before is not None, "took over an absent record")
    now = step.clock("expires_at") - (step.args.get("ttl") or before.ttl)
    require(step.asked_at <= now <= step.at, "expires_at is not a ttl from the takeover")
    require(not before.expired(now), "took over an expired record")
    require(not (own and before.state == "processing"), "took over its own claim")
    require(before.state in ("unknown", "released") or before.lapsed(now)
            or (before.state == "processing" and step.args["force"]),
            f"took over a record that is {before.state}")
    require(step.answer["attempt"] == before.attempt + 1,
            f"attempt {step.answer['attempt']} follows attempt {before.attempt}")
    require(step.answer["checkpoint"] == before.checkpoint or step.answer["state"] in SETTLED,
            "the checkpoint is not the one recorded last")
    return now


def takeover(step, before, own):
    now = _may_take_over(step, before, own)
    return _grant(step, before, now, fingerprint=before.fingerprint,
                  ttl=before.ttl, on_abandon=before.on_abandon)


def resolve(step, before, own):
    _may_take_over(step, before, own)
    require(step.answer["state"] == step.args["state"], "resolved to another state")
    return dataclasses.replace(
        before, state=step.args["state"], attempt=step.answer["attempt"], token=None,
        progressed=False, lease=None, lease_expires_at=None, expires_at=step.clock("expires_at"),
        response=step.args["response"])


def _owned(step, before, own, states):
    require(before is not None, "an absent record has no owner")
    token = step.args["token"]
    require(token == before.token or (token is None and own), "a lost claim passed for owned")
    require(before.state in states, f"the owner of a record that is {before.state} wrote it")


def finish(step, before, own):
    _owned(step, before, own, ("processing", "unknown"))
    state, ttl = step.args["state"], step.args["ttl"]
    until = step.clock("expires_at")
    if step.answer["outcome"] == "replayed":
        require(digest_of(step.answer) == step.args["response"], "another response was stored")
    if state == "unknown":
        until = None                    # not shown, and without meaning
    elif until is None:
        until = step.at                 # expired before it could be shown
    elif ttl:
        require(step.around(until, ttl), "an explicit ttl was not set")
    elif before.expires_at is None:
        require(until - step.asked_at >= before.ttl // 2, "too short a time to replay is left")
    elif until == before.expires_at:
        require(until - step.asked_at >= before.ttl // 2, "too short a time to replay is left")
    else:
        require(step.around(until, before.ttl), "expires_at is not a ttl from the finish")
        require(before.expires_at - step.at < before.ttl // 2, "expires_at moved without need")
    lapsed = step.clock("lease_expires_at")
    require((lapsed is not None) == (state == "unknown") or step.answer["outcome"] == "absent",
            "a finished record keeps its lease")
    return dataclasses.replace(
        before, state=state, response=step.args["response"], expires_at=until,
        lease_expires_at=lapsed,
        on_abandon="unknown" if state == "unknown" else before.on_abandon)


def _renewed(step, before, **changes):
    lease = step.args["lease"] or before.lease
    until = step.clock("until")
    require(before.lease is not None, "renewed a claim that has no lease")
    require(step.around(until, lease), "the lease is not as long as asked for")
    return dataclasses.replace(before, progressed=True, lease=lease,
                               lease_expires_at=until, **changes)


def extend(step, before, own):
    _owned(step, before, own, ("processing",))
    return _renewed(step, before)


def checkpoint(step, before, own):
    _owned(step, before, own, ("processing",))
    return _renewed(step, before, checkpoint=step.args["checkpoint"],
                    on_abandon=step.args["on_abandon"] or before.on_abandon)


def effect(step, before, own):
    """A business row, written by an owner under its fence."""
    _owned(step, before, own, ("processing",))
    return before


def forget(_step, before, _own):
    require(before is not None, "forgot an absent record")
    return None


def _settled_at_once(step, attempt, fingerprint, ttl, response):
    return Version(state="succeeded", attempt=attempt, token=None, fingerprint=fingerprint,
                   ttl=ttl, on_abandon="unknown", lease=None, lease_expires_at=None,
                   expires_at=step.clock("expires_at") or step.at, response=response)


def once(step, before, own):
    require(not (own and before and before.state == "processing"), "once passed over an own claim")
    require(before is None or before.expired(step.at), "a key was new for the second time")
    return _settled_at_once(step, 1, None, step.args["ttl"], NO_RESPONSE)


def execute(step, before, own):
    now = step.clock("expires_at") - step.args["ttl"]
    require(step.asked_at <= now <= step.at, "expires_at is not a ttl from the claim")
    require(not (own and before and before.state == "processing"), "executed over its own claim")
    before = _follows(step, before, now)
    require(step.answer["recovered"] == (before is not None and before.state != "released"),
            "recovered is wrong")
    after = _settled_at_once(step, step.answer["attempt"], step.args["fingerprint"],
                             step.args["ttl"], digest_of(step.answer))
    return dataclasses.replace(after, checkpoint=before.checkpoint if before else None)


STEPS = {step.__name__: step for step in (
    claim, takeover, resolve, finish, extend, checkpoint, effect, forget, once, execute)}


# ---------------------------------------------------------------------------
# The history of a key
# ---------------------------------------------------------------------------

@dataclass
class Period:
    """A version that others could see, and when."""

    version: Optional[Version]
    made: int = 0               # not before
    acknowledged: int = 0       # not after
    replaced: int = NEVER       # not before
    gone: int = NEVER           # not after

    def possible(self, seen):
        return self.made <= seen.answered and self.gone >= seen.asked

    def certain(self, seen):
        return self.acknowledged < seen.asked and seen.answered < self.replaced


class History:
    """All committed changes of one key.  acks: when COMMIT of a tx was answered."""

    def __init__(self, key, steps, acks):
        self.key = key
        self.acks = acks
        self.periods = [Period(None)]
        self.drawn = []             # tokens that the server made, in order
        self.leases = {}            # token -> ends of its lease, as written
        self.violations = []
        self._walk(sorted(steps, key=lambda step: step.at))
        self.last = self.periods[-1].version

    def _walk(self, steps):
        now, tx = None, None
        for step in steps:
            own = tx == step.tx
            if not own and now is not None and now.unfinished():
                self._report(step, now, "an unfinished transactional claim was committed")
            try:
                after = self._apply(step, now, own)
            except Illegal as illegal:
                self._report(step, now, str(illegal))
                return
            if after is not now:
                self._append(step, after, own)
                now, tx = after, step.tx
        if now is not None and now.unfinished():
            self._report(steps[-1], now, "an unfinished transactional claim was committed")

    def _apply(self, step, before, own):
        if step.kind == "extend" and step.clock("until") in self.leases.get(step.args["token"], ()):
            return before           # the row was locked, so nothing was written
        after = STEPS[step.kind](step, before, own)
        if after is not None and after.lease_expires_at is not None:
            self.leases.setdefault(after.token, set()).add(after.lease_expires_at)
        if step.kind in ("claim", "takeover") and not step.args.get("claim_token"):
            self.drawn.append(after.token)
        return after

    def _append(self, step, after, own):
        """Of the versions that one transaction makes, others see the last."""
        acknowledged = self.acks.get(step.tx, NEVER)
        if own and len(self.periods) > 1:
            self.periods.pop()
        self.periods[-1].replaced = step.at
        self.periods[-1].gone = acknowledged
        self.periods.append(Period(after, made=step.at, acknowledged=acknowledged))

    def _report(self, step, before, what):
        self.violations.append(f"{self.key}: {what}: {step} after {before}")

    def check_row(self, row, now):
        """The record that the table holds in the end, or None, is the last version."""
        if row is None:
            if self.last is not None and not self.last.expired(now):
                yield f"{self.key}: the record is gone: {self.last}"
            return
        if self.last is None:
            yield f"{self.key}: a record is there that should not be: {row}"
            return
        want = dataclasses.asdict(self.last)
        for name, value in row.items():
            unsure = want[name] is None and name in ("token", "expires_at")
            # an expiry that was too soon to be seen is known as a bound only
            unsure = unsure or (name == "expires_at" and self.last.expired(now))
            if value != want[name] and not unsure:
                yield f"{self.key}: {name} is {value!r} in the end, not {want[name]!r}"


# ---------------------------------------------------------------------------
# Observations
# ---------------------------------------------------------------------------

@dataclass(frozen=True)
class Seen:
    """What a call that changed nothing was told, and when it was asked and answered."""

    key: str
    kind: str
    asked: int
    answered: int
    args: dict
    told: str           # an outcome, a truth value or an SQLSTATE
    row: dict           # state, attempt, lease_expires_at, expires_at, checkpoint, response

    def shows(self, version, *names):
        return all(self.row[name] == getattr(version, name) for name in names)


def _replayed(v, seen):
    return (v.state in SETTLED and not v.expired(seen.asked)
            and seen.shows(v, "state", "attempt", "response", "expires_at")
            and (seen.kind not in ("claim", "execute")
                 or v.fingerprint == seen.args["fingerprint"]))


def _mismatch(v, seen):
    return (v.fingerprint != seen.args["fingerprint"] and not v.expired(seen.asked)
            and seen.shows(v, "state"))


def _unknown(v, seen):
    return v.undecided(seen.answered) and seen.shows(
        v, "state", "attempt", "lease_expires_at", "checkpoint")


def _in_progress(v, seen):
    return seen.shows(v, "state", "attempt", "lease_expires_at")


def _released(v, seen):
    return (v.free(seen.answered) and not v.expired(seen.asked)
            and seen.shows(v, "state", "attempt", "checkpoint"))


def _seen_once(v, seen):
    return v.state in SETTLED and not v.expired(seen.asked)


def _recorded(v, seen):
    return v.token == seen.args["token"] and v.state == seen.args["state"]


def _reused(v, seen):
    return v.token == seen.args["claim_token"]


def _claimed_key(v, seen):
    return v.state not in SETTLED and not v.expired(seen.asked)


def _asserted(v, seen):
    return v.token == seen.args["token"] and v.state == "processing"


def _not_leased(v, seen):
    return v.token == seen.args["token"] and v.lease is None


# What was told -> must fit one of the versions that were possible then.
FITS = {
    ("outcome", "replayed"): _replayed,
    ("outcome", "mismatch"): _mismatch,
    ("outcome", "unknown"): _unknown,
    ("outcome", "in_progress"): _in_progress,
    ("outcome", "released"): _released,
    ("once", "False"): _seen_once,
    ("once", "55006"): _claimed_key,
    ("finish", "False"): _recorded,
    ("claim", "22023"): _reused,
    ("assert", "held"): _asserted,
    ("extend", "55000"): _not_leased,
    ("checkpoint", "55000"): _not_leased,
    ("assert", "55000"): _not_leased,
}


def _there(v, seen):
    return v is not None and not v.expired(seen.answered)


def _still_owned(v, seen):
    """ID001 although the claim is not lost."""
    if v is None or v.token != seen.args["token"] or v.expired(seen.answered):
        return False
    if seen.kind == "finish":
        return v.state in ("processing", "unknown") or v.state == seen.args["state"]
    return v.state == "processing"


# What was told -> must not be if this holds of a version that was certain.
CONTRADICTED = {
    "absent": _there,
    "forget False": _there,
    "ID001": _still_owned,
}


def check_seen(seen, history):
    """None, or what is wrong with what the call was told."""
    told = f"{seen.kind} False" if (seen.kind, seen.told) == ("forget", "False") else seen.told
    if told in CONTRADICTED:
        for period in history.periods:
            if period.certain(seen) and CONTRADICTED[told](period.version, seen):
                return f"{seen} contradicts {period}"
        return None
    fits = FITS.get((seen.kind, told)) or FITS.get(("outcome", told))
    if fits is None:
        return f"{seen}: unexpected answer"
    possible = [period for period in history.periods if period.possible(seen)]
    if any(period.version is not None and fits(period.version, seen) for period in possible):
        return None
    return f"{seen} fits none of {possible[-3:]}"
