"""Whole workflows against what people use: one order per request.

All variants run in one process after the other, forwards in one round and
backwards in the next, without duplicates and with 30 %.
"""

from . import db, node
from .stats import paired, summary

VARIANTS = ["none", "powertools", "node-idempotency", "stack", "hand", "calls", "execute"]


def run(size, say):
    db.fresh_database("bench_workflows")
    db.psql(node.schema())
    runs = {0: {}, 0.3: {}}
    for turn in range(size.rounds):
        order = VARIANTS if turn % 2 == 0 else VARIANTS[::-1]
        for duplicates, found in runs.items():
            names = [name for name in order if name != "none" or not duplicates]
            db.psql("VACUUM; CHECKPOINT")
            for result in node.drive("throughput", variants=names, duplicates=duplicates,
                                     seconds=size.seconds, warm=size.warm,
                                     concurrency=size.concurrency):
                if result["error"]:
                    raise RuntimeError("%(name)s: %(error)d errors: %(message)s" % result)
                found.setdefault(result["name"], []).append(result)
        say("round %d of %d" % (turn + 1, size.rounds))
    doubled = int(db.number("SELECT count(*) FROM (SELECT FROM orders GROUP BY ref"
                            " HAVING count(*) > 1) x"))
    if doubled:
        raise RuntimeError("%d orders were created more than once" % doubled)
    return {"seconds": size.seconds, "concurrency": size.concurrency,
            "rows": [row(name, "none", duplicates, found)
                     for duplicates, found in runs.items() for name in found]}


def row(name, ceiling, duplicates, found):
    runs = found[name]
    rates = {n: [r["perSecond"] for r in rs] for n, rs in found.items()}
    return {"name": name, "duplicates": duplicates, "rate": summary(rates[name]),
            "p50": summary([r["p50"] for r in runs]), "p99": summary([r["p99"] for r in runs]),
            "counts": {how: sum(r[how] for r in runs) for how in ("executed", "replayed", "busy")},
            "to": {other: paired(rates["execute"], rates[other])
                   for other in rates if name == "execute" and other != name}}
