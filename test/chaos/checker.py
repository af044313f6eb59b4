#!/usr/bin/python3
"""The checker of the fault runner is not blind, nor does it cry wolf.

A small history is written by hand, in which everything that may happen to a
key happens and nothing is wrong: the checker must find nothing.  Then each lie
of lib/doctor.py is told in it, and must be found.
"""

from lib import doctor, tap, verdict
from lib.history import Op
from lib.verdict import Final


def replayed(op, attempt=1, charges=0):
    return Final("replayed", attempt, op.digest, [op.id], charges, "replayed", attempt, op.digest)


def absent():
    return Final(next_outcome="claimed", next_attempt=1)


class Story:
    """Operations one after the other; each takes two ticks unless told otherwise."""

    def __init__(self):
        self.ops, self.finals, self.clock = [], {}, 0

    def op(self, kind, scope, key, status="ok", **data):
        self.clock += 10
        op = Op(f"op{len(self.ops)}", kind, scope, key, self.clock, self.clock + 2, status, **data)
        self.ops.append(op)
        return op

    def ends(self, scope, key, final):
        self.finals[scope, key] = final


def honest():
    """Each paragraph is a key."""
    story = Story()
    op, ends = story.op, story.ends

    op("ask", "tx", "plain", outcome="claimed", attempt=1)
    done = op("settle", "tx", "plain", digest="d1", attempt=1)
    op("ask", "tx", "plain", outcome="replayed", digest="d1", attempt=1)
    ends("tx", "plain", replayed(done))

    op("settle", "tx", "rolled back", "fail", digest="d2", attempt=1)
    ends("tx", "rolled back", absent())

    op("settle", "execute", "lost and not done", "unknown", digest="d3", attempt=1)
    done = op("settle", "execute", "lost and not done", digest="d4", attempt=1)
    ends("execute", "lost and not done", replayed(done))

    done = op("settle", "tx", "lost and done", "unknown", digest="d5", attempt=1)
    op("ask", "tx", "lost and done", outcome="replayed", digest="d5", attempt=1)
    ends("tx", "lost and done", replayed(done))

    op("claim", "unknown", "paid", outcome="claimed", attempt=1)
    op("ask", "unknown", "paid", outcome="in_progress", attempt=1)
    done = op("settle", "unknown", "paid", digest="d6", attempt=1)
    op("settle", "unknown", "paid", "fail", digest="d6", attempt=1, already=True)
    ends("unknown", "paid", replayed(done, charges=1))

    op("claim", "unknown", "abandoned", outcome="claimed", attempt=1)
    op("claim", "unknown", "abandoned", outcome="unknown", attempt=1)
    ends("unknown", "abandoned", Final("unknown", 1, charges=1, next_outcome="unknown",
                                       next_attempt=1))

    op("claim", "unknown", "reconciled", outcome="claimed", attempt=1, token="t")
    op("claim", "unknown", "reconciled", outcome="claimed", attempt=1, token="t")
    op("takeover", "unknown", "reconciled", outcome="claimed", attempt=2)
    op("settle", "unknown", "reconciled", "fail", digest="d7", attempt=1, fenced=True)
    op("release", "unknown", "reconciled", attempt=2)
    op("claim", "unknown", "reconciled", outcome="claimed", attempt=3)
    done = op("settle", "unknown", "reconciled", digest="d8", attempt=3)
    ends("unknown", "reconciled", replayed(done, 3, charges=1))

    op("claim", "retry", "abandoned", outcome="claimed", attempt=1)
    op("claim", "retry", "abandoned", outcome="claimed", attempt=2)
    ends("retry", "abandoned", Final("released", 2, charges=1, next_outcome="claimed",
                                     next_attempt=3))

    op("claim", "retry", "held", outcome="claimed", attempt=1)
    ends("retry", "held", Final("in_progress", 1, next_outcome="in_progress", next_attempt=1))

    op("claim", "retry", "never claimed", "fail")
    ends("retry", "never claimed", absent())

    op("forgotten", "tx", "unfinished", "fail")
    ends("tx", "unfinished", absent())

    return story.ops, story.finals


def test_lost_standby():
    """What was committed without the standby may go with the primary; who saw it too."""
    story = Story()
    story.op("settle", "tx", "k", "unknown", digest="d1", attempt=1, local=True)
    story.op("ask", "tx", "k", outcome="replayed", digest="d1", attempt=1)
    story.ends("tx", "k", absent())
    tap.none([str(v) for v in verdict.judge(story.ops, story.finals)],
             "a commit whose wait was cancelled may be lost")
    story.ops[0].local = False
    tap.equal([v.kind for v in verdict.judge(story.ops, story.finals)], [verdict.LOST],
              "but not one that nobody knows to be local")


def main():
    tap.begin()
    ops, finals = honest()
    tap.none([str(v) for v in verdict.judge(ops, finals)], "an honest history is clean")
    for lie, kind in doctor.LIES:
        found = doctor.tell(lie, ops, finals)
        tap.ok(kind in found, f"{doctor.name_of(lie)}: {kind}", [f"found: {sorted(found)}"])
    test_lost_standby()
    tap.finish()


if __name__ == "__main__":
    main()
