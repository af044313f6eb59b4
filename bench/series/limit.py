"""Against the limit: each call beside bare SQL on a twin of the table.

A round runs all scripts of a setting one after the other, forwards in one
round and backwards in the next, after a vacuum and a checkpoint.  Ratios are
of the same round.
"""

from . import db
from .calls import CALLS, INSERT_FIRST, PAIRS
from .stats import paired, summary

MODES = {
    "on": "",
    "off": "-c synchronous_commit=off -c idempotency.durable_claims=off",
}


def scripts_of(mode):
    """What runs in a mode: replays write nothing, so one mode shows them."""
    names = []
    for _, ours, bare, _, writes in PAIRS:
        if writes or mode == "on":
            names += [name for name in (ours, bare) if name not in names]
    return names


def prepare(records):
    db.fresh_database("bench_limit")
    db.make_twin()
    db.psql(INSERT_FIRST)
    for table in ("idem_record", "bare_record"):
        db.load(table, 1, records)
    db.psql("VACUUM ANALYZE")


def run(size, say):
    prepare(size.records)
    paths = {name: db.script(text) for name, text in CALLS.items()}
    tps = {}
    for turn in range(size.rounds):
        for mode, settings in MODES.items():
            names = scripts_of(mode)
            for clients in size.clients:
                db.psql("VACUUM idem_record, bare_record; CHECKPOINT")
                for name in names if turn % 2 == 0 else reversed(names):
                    done = db.pgbench(paths[name], clients, seconds=size.seconds,
                                      settings=settings,
                                      options=("-D", "records=%d" % size.records))
                    tps.setdefault((mode, clients, name), []).append(done["tps"])
        say("round %d of %d" % (turn + 1, size.rounds))
    return {
        "records": size.records, "seconds": size.seconds,
        "rows": [row(tps, mode, clients, pair)
                 for pair in PAIRS for mode in MODES for clients in size.clients
                 if (mode, clients, pair[1]) in tps],
    }


def row(tps, mode, clients, pair):
    name, ours, bare, target, writes = pair
    a, b = tps[mode, clients, ours], tps[mode, clients, bare]
    return {"name": name, "mode": mode if writes else "either", "clients": clients,
            "target": target, "ours": summary(a), "bare": summary(b), "ratio": paired(a, b)}
