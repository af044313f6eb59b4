"""What the record is like before, and what three actors do with it."""

from dataclasses import dataclass
from typing import Callable, Optional

from oracle import World, commit, step

LEVELS = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")

REQUEST, OTHER_REQUEST = '{"n": 1}', '{"n": 2}'

# ---------------------------------------------------------------------------
# Steps
# ---------------------------------------------------------------------------

BEGIN = ("begin", {})           # takes the snapshot that the rest must not be held to
COMMIT = ("commit", {})
ROLLBACK = ("rollback", {})
SWEEP = ("sweep", {})
FORGET = ("forget", {})
LOOKUP = ("lookup", {})
EXTEND = ("extend", {"lease": "day"})


def claim(lease=None, ttl="day", on_abandon="unknown", request=REQUEST):
    return "claim", {"request": request, "lease": lease, "ttl": ttl, "on_abandon": on_abandon}


def takeover(lease="day"):
    return "takeover", {"lease": lease}


def resolve(response):
    return "resolve", {"response": response}


def finish(response, state="succeeded", ttl=None):
    return "finish", {"state": state, "response": response, "ttl": ttl}


# ---------------------------------------------------------------------------
# Actors: who is the response that it stores
# ---------------------------------------------------------------------------

def worker(who):
    return claim(), finish(who), COMMIT


def early_worker(who):
    """Its snapshot is older than its claim, at the levels that keep one."""
    return BEGIN, claim(), finish(who), COMMIT


def failing_worker(who):
    return claim(), finish(who), ROLLBACK


def forgetful_worker(_who):
    return claim(), COMMIT


def brief_worker(who):
    """Its answer is over at once, so that the key is to be had again."""
    return claim(), finish(who, ttl="moment"), COMMIT


def leaser(who):
    return claim("day"), COMMIT, finish(who), COMMIT


def lapsing_leaser(who):
    return claim("moment"), COMMIT, finish(who), COMMIT


def retrying_leaser(who):
    return claim("moment", on_abandon="retry"), COMMIT, finish(who), COMMIT


def releasing_leaser(who):
    return claim("day"), COMMIT, finish(who, "released"), COMMIT


def undecided_leaser(who):
    return claim("day"), COMMIT, finish(who, "unknown"), COMMIT, finish(who), COMMIT


def stranger(who):
    return claim(request=OTHER_REQUEST), finish(who), COMMIT


def owner(who):
    return finish(who), COMMIT


def wavering_owner(who):
    return finish(who), ROLLBACK, finish(who), COMMIT


def releasing_owner(who):
    return finish(who, "released"), COMMIT


def extending_owner(who):
    return EXTEND, COMMIT, finish(who), COMMIT


def repeating_owner(who):
    return finish(who), COMMIT, finish(who), COMMIT


def taker(who):
    return takeover(), COMMIT, finish(who), COMMIT


def taker_inside(who):
    return takeover(None), finish(who), COMMIT


def failing_taker(who):
    return takeover(None), finish(who), ROLLBACK


def resolver(who):
    return resolve(who), COMMIT


def sweeper(_who):
    return SWEEP, COMMIT


def early_sweeper(_who):
    return BEGIN, SWEEP, COMMIT


def failing_sweeper(_who):
    return SWEEP, ROLLBACK


def forgetter(_who):
    return FORGET, COMMIT


def reader(_who):
    return LOOKUP, COMMIT, LOOKUP, COMMIT


# ---------------------------------------------------------------------------
# The record before
# ---------------------------------------------------------------------------

_DAY, _MOMENT = "1 day", "1 microsecond"


def _claimed(db, key, lease, ttl, on_abandon):
    return db.execute(
        """SELECT token::text FROM idem_claim('permute', %s, request => %s, lease => %s,
           ttl => %s, on_abandon => %s)""",
        [key, REQUEST, lease, ttl, on_abandon]).fetchone()[0]


def absent(_db, _key):
    return World(), []


def record(lease="moment", ttl="day", on_abandon="unknown", state=None):
    """A record made by calls, and the world in which they were made."""
    length = {"day": _DAY, "moment": _MOMENT}

    def before(db, key):
        token = _claimed(db, key, length[lease], length[ttl], on_abandon)
        calls = [claim(lease, ttl, on_abandon), COMMIT]
        if state:
            body = "before" if state in ("succeeded", "failed") else None
            db.execute("""SELECT idem_finish('permute', %s, token => %s, state => %s,
                response_body => %s, ttl => %s)""", [key, token, state, body, length[ttl]])
            calls += [finish("before", state, ttl), COMMIT]
        world = World()
        for call in calls:
            (world, _), = step(world, 0, call)
        return _without_effects(world), [token]
    return before


def _without_effects(world):
    """What was done before the scene begins has no row in the table of effects."""
    return World(record=world.record, lives=world.lives, grants=world.grants)


live = record(lease="day")
lapsed = record()
to_retry = record(on_abandon="retry")
to_retry_expired = record(ttl="moment", on_abandon="retry")
lapsed_expired = record(ttl="moment")
live_expired = record(lease="day", ttl="moment", on_abandon="retry")
released = record(state="released")
unknown = record(state="unknown")
succeeded = record(state="succeeded")
succeeded_expired = record(ttl="moment", state="succeeded")
failed_expired = record(ttl="moment", state="failed")


@dataclass(frozen=True)
class Scene:
    name: str
    before: Callable
    scripts: tuple
    owner: Optional[int] = None     # the actor that knows the token of the record before


def scene(before, *actors):
    names = [actor.__name__.replace("_", " ") for actor in actors]
    owners = [i for i, name in enumerate(names) if "owner" in name]
    start = next(name for name, value in globals().items() if value is before)
    return Scene(f"{start.replace('_', ' ')}: {', '.join(names)}", before,
                 tuple(actor("abc"[i]) for i, actor in enumerate(actors)),
                 owners[0] if owners else None)


SCENES = (
    scene(absent, worker, early_worker, worker),
    scene(absent, early_worker, failing_worker, early_sweeper),
    scene(absent, worker, leaser, taker),
    scene(absent, leaser, releasing_leaser, failing_worker),
    scene(absent, brief_worker, early_worker, early_sweeper),
    scene(absent, brief_worker, brief_worker, failing_sweeper),
    scene(absent, retrying_leaser, retrying_leaser, sweeper),
    scene(absent, retrying_leaser, worker, taker),
    scene(absent, lapsing_leaser, taker, worker),
    scene(absent, lapsing_leaser, resolver, worker),
    scene(absent, lapsing_leaser, taker, taker_inside),
    scene(absent, undecided_leaser, worker, resolver),
    scene(absent, leaser, forgetter, worker),
    scene(absent, worker, stranger, reader),
    scene(absent, forgetful_worker, worker, forgetter),
    scene(live, owner, taker, early_worker),
    scene(live, releasing_owner, worker, taker),
    scene(live, wavering_owner, worker, reader),
    scene(lapsed, owner, taker, sweeper),
    scene(lapsed, owner, taker, early_worker),
    scene(lapsed, wavering_owner, failing_taker, worker),
    scene(lapsed, repeating_owner, resolver, forgetter),
    scene(lapsed, extending_owner, taker, worker),
    scene(lapsed, owner, resolver, taker_inside),
    scene(lapsed_expired, owner, sweeper, worker),
    scene(to_retry, owner, early_worker, worker),
    scene(to_retry, wavering_owner, worker, taker),
    scene(to_retry, extending_owner, worker, failing_worker),
    scene(to_retry_expired, owner, early_sweeper, early_worker),
    scene(to_retry_expired, extending_owner, sweeper, worker),
    scene(to_retry_expired, wavering_owner, sweeper, failing_sweeper),
    scene(live_expired, extending_owner, sweeper, worker),
    scene(released, worker, failing_worker, taker),
    scene(released, worker, leaser, resolver),
    scene(unknown, owner, taker, early_sweeper),
    scene(unknown, wavering_owner, resolver, worker),
    scene(succeeded, repeating_owner, worker, sweeper),
    scene(succeeded_expired, early_worker, worker, early_sweeper),
    scene(succeeded_expired, worker, failing_worker, failing_sweeper),
    scene(succeeded_expired, repeating_owner, sweeper, leaser),
    scene(failed_expired, releasing_leaser, failing_worker, sweeper),
)
