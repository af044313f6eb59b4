"""Duplicate storm: many waiters on one key."""

from . import db, node
from .stats import summary

WAYS = ["wait", "poll", "lock"]


def run(size, say):
    db.fresh_database("bench_storm")
    db.psql(node.schema())
    found = {how: [] for how in WAYS}
    for part in range(2):
        for how in WAYS if part == 0 else reversed(WAYS):
            found[how] += node.drive("storm", how=how, waiters=size.waiters, hold=size.hold,
                                     rounds=(size.rounds + 1) // 2)
    say("%d storms of each kind" % len(found["wait"]))
    return {"waiters": size.waiters, "hold": size.hold,
            "rows": [{"name": how, **{what: summary([r[what] for r in runs])
                                      for what in ("p50", "p99", "max", "cores")}}
                     for how, runs in found.items()]}
