"""What each step of a permutation may answer: the protocol, one step at a time.

The runner knows the order of all steps, and every deadline is either long over
or far away, so there is nothing to estimate: a World says who holds the record,
what is committed, and with that what a call must be told, whether it must
block, and what it leaves behind.  Only when two calls wait for the same
transaction may either be the first to go on; so a step leads to a set of
worlds, of which what is seen then picks.

The rules are those of the README, written down anew: nothing here is taken
from the code under test.
"""

from dataclasses import dataclass, replace
from typing import Any, Optional

from lib.model import Version

NOW, PAST, FAR = 1, 0, 2        # deadlines as the test makes them

BLOCKED = "blocked"
SETTLED = ("succeeded", "failed")


@dataclass(frozen=True)
class Record:
    """A version, and which life of the key it belongs to."""

    version: Version
    life: int

    def __getattr__(self, name):
        return getattr(self.version, name)

    def change(self, **changes):
        return Record(replace(self.version, **changes), self.life)


@dataclass(frozen=True)
class World:
    """All that decides what the next step is told."""

    record: Optional[Record] = None         # committed
    holder: Optional[int] = None            # the actor with an uncommitted change
    pending: Optional[Record] = None        # what that makes of the record
    lives: int = 0
    grants: tuple = ()                      # (life, attempt) of each grant, in order
    tokens: tuple = (None, None, None)      # the index of each actor's grant
    done: tuple = (None, None, None)        # what each actor's transaction has done: an effect
    broken: tuple = (False, False, False)   # that transaction can only be rolled back
    effects: tuple = ()                     # (life, response) of committed effects
    waiting: tuple = (None, None, None)     # the call that an actor is blocked in

    def set(self, name, actor, value):
        values = list(getattr(self, name))
        values[actor] = value
        return replace(self, **{name: tuple(values)})

    def held(self, actor):
        return self.holder not in (None, actor)

    def at_hand(self, actor):
        return self.pending if self.holder == actor else self.record

    def write(self, actor, record):
        return replace(self, holder=actor, pending=record)

    def absent(self, actor):
        record = self.at_hand(actor)
        if record is None:
            return True
        return record.expired(NOW) and not (self.holder == actor and record.state == "processing")

    def owned(self, actor):
        """Is the record at hand of the grant that this actor knows?"""
        record = self.at_hand(actor)
        return record is not None and self.tokens[actor] == record.token

    def grant(self, actor, record):
        """The next attempt; record None begins a life."""
        token = len(self.grants)
        life = record.life if record else self.lives
        attempt = record.attempt + 1 if record else 1
        world = replace(self, grants=self.grants + ((life, attempt),),
                        lives=self.lives + (record is None))
        return world.set("tokens", actor, token), token, attempt, life


@dataclass(frozen=True)
class Told:
    """An answer, less what the oracle does not know."""

    what: Any
    attempt: Optional[int] = None
    response: Optional[str] = None


def _deadline(length):
    return {None: None, "day": FAR, "moment": PAST}[length]


def claim(world, actor, args):
    if world.held(actor):
        return world, Told("in_progress")
    record = world.at_hand(actor)
    if world.absent(actor):
        record = None
    elif record.fingerprint != args["request"]:
        return world, Told("mismatch")
    elif not record.free(NOW):
        return world, _refusal(record)
    return _granted(world, actor, record, args, on_abandon=args["on_abandon"],
                    ttl=args["ttl"], fingerprint=args["request"])


def _refusal(record):
    if record.state in SETTLED:
        return Told("replayed", record.attempt, record.response)
    if record.undecided(NOW):
        return Told("unknown", record.attempt)
    return Told("in_progress")


def _granted(world, actor, record, args, **terms):
    world, token, attempt, life = world.grant(actor, record)
    version = Version(state="processing", attempt=attempt, token=token, lease=args["lease"],
                      lease_expires_at=_deadline(args["lease"]),
                      expires_at=_deadline(terms["ttl"]), response=None, **terms)
    return world.write(actor, Record(version, life)), Told("claimed", attempt)


def takeover(world, actor, args):
    if world.held(actor):
        return world, Told("in_progress")
    record = world.at_hand(actor)
    if world.absent(actor):
        return world, Told("absent")
    if not (record.undecided(NOW) or record.free(NOW)):
        return world, _refusal(record)
    return _granted(world, actor, record, args, on_abandon=record.on_abandon, ttl=record.ttl,
                    fingerprint=record.fingerprint)


def resolve(world, actor, args):
    after, told = takeover(world, actor, {"lease": None})
    if told.what != "claimed":
        return world, told
    response = args["response"]
    record = after.pending.change(state="succeeded", token=None, response=response,
                                  lease_expires_at=None)
    after = replace(after, tokens=world.tokens, grants=world.grants)
    return after.write(actor, record), Told("replayed", told.attempt, response)


def lookup(world, actor, _args):
    if world.held(actor):
        # an uncommitted change that is no insert still is somebody else's
        return world, Told("in_progress")
    record = world.at_hand(actor)
    if world.absent(actor):
        return world, Told("absent")
    if record.free(NOW):
        return world, Told("released", record.attempt)
    return world, _refusal(record)


def finish(world, actor, args):
    if world.held(actor):
        return world, BLOCKED
    record, state = world.at_hand(actor), args["state"]
    if not world.owned(actor):
        return world, Told("ID001")
    if record.state == state:
        return world, Told(False)
    if record.state not in ("processing", "unknown"):
        return world, Told("ID001")
    response = args["response"] if state in SETTLED else None
    until = record.expires_at
    if args["ttl"] or until == PAST:
        until = _deadline(args["ttl"] or record.ttl)
    finished = record.change(state=state, response=response, expires_at=until,
                             lease_expires_at=PAST if state == "unknown" else None,
                             on_abandon="unknown" if state == "unknown" else record.on_abandon)
    world = world.write(actor, finished)
    if state == "succeeded":
        world = world.set("done", actor, (record.life, response))
    return world, Told(True)


def extend(world, actor, args):
    if world.held(actor):
        return world, BLOCKED
    record = world.at_hand(actor)
    if not world.owned(actor) or record.state != "processing":
        return world, Told("ID001")
    renewed = record.change(lease=args["lease"], progressed=True,
                            lease_expires_at=_deadline(args["lease"]))
    return world.write(actor, renewed), Told("held")


def forget(world, actor, _args):
    if world.held(actor):
        return world, BLOCKED
    if world.at_hand(actor) is None:
        return world, Told(False)
    return world.write(actor, None), Told(True)


def sweep(world, actor, _args):
    if world.held(actor) or world.at_hand(actor) is None or not world.absent(actor):
        return world, Told(0)
    return world.write(actor, None), Told(1)


def begin(world, _actor, _args):
    return world, Told("begun")


def _end(world, actor):
    if world.holder == actor:
        world = replace(world, holder=None, pending=None)
    return world.set("done", actor, None).set("broken", actor, False)


def rollback(world, actor, _args):
    return _end(world, actor), Told("ended")


def commit(world, actor, args):
    if world.broken[actor]:
        return rollback(world, actor, args)
    if world.holder == actor:
        pending = world.pending
        if pending is not None and pending.unfinished():
            return _end(world, actor), Told("ID002")
        world = replace(world, record=pending)
    if world.done[actor]:
        world = replace(world, effects=world.effects + (world.done[actor],))
    return _end(world, actor), Told("ended")


CALLS = {call.__name__: call for call in (
    claim, takeover, resolve, lookup, finish, extend, forget, sweep, begin, rollback, commit)}


def _perform(world, actor, call):
    name, args = call
    world, told = CALLS[name](world, actor, args)
    if told == BLOCKED:
        return world.set("waiting", actor, call), told
    world = world.set("waiting", actor, None)
    if told.what == "ID001":
        world = world.set("broken", actor, True)
    return world, told


def step(world, actor, call):
    """Every (world, answers) that the call can lead to; who is still blocked has no answer."""
    world, told = _perform(world, actor, call)
    yield from _go_on(world, {} if told == BLOCKED else {actor: told})


def _go_on(world, answers):
    """Let those who wait go on, in any order."""
    ready = [actor for actor, call in enumerate(world.waiting)
             if call is not None and not world.held(actor)]
    if not ready:
        yield world, answers
    for actor in ready:
        after, told = _perform(world, actor, world.waiting[actor])
        yield from _go_on(after, {**answers, actor: told})
