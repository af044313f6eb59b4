"""The same work by a worker that is killed at random: what became of each key.

Every client sends its order again until it has an answer.  After the last kill it
keeps asking for so many seconds more (patience): a crashed attempt may block its
key for one second in the stacks on Redis that know such a bound, and a second
worker that takes over from it, in Powertools, for ten.
"""

from . import db, node

VARIANTS = ["powertools", "node-idempotency", "stack", "hand", "calls", "execute"]
OURS = ["calls", "execute"]     # which must answer for every key, however slow the machine
LONG = 120                      # seconds, if need be; it takes none where nothing is stuck


def run(size, say):
    db.fresh_database("bench_killed")
    db.psql(node.schema())
    rows = {}
    for turn in range(size.rounds):
        for name in VARIANTS:
            db.psql("TRUNCATE orders")
            result, = node.drive("killed", variant=name, kills=size.kills,
                                 concurrency=size.concurrency,
                                 patience=LONG if name in OURS else size.patience)
            add(rows.setdefault(name, {"name": name}), result)
        say("round %d of %d" % (turn + 1, size.rounds))
    for row in rows.values():
        if row["name"] in OURS and (row["doubled"] or row["stuck"] or row["lost"]):
            raise RuntimeError("not exactly once: %s" % row)
    return {"concurrency": size.concurrency, "patience": size.patience, "rows": list(rows.values())}


def add(row, result):
    stuck = ",".join("'%s'" % key for key in result["unanswered"]) or "''"
    doubled, most, made, stuck_made = db.psql("""
        SELECT count(*) FILTER (WHERE n > 1), coalesce(max(n), 0), count(*),
            count(*) FILTER (WHERE ref IN (%s))
        FROM (SELECT ref, count(*) AS n FROM orders GROUP BY ref) x""" % stuck)[0]
    found = {"kills": result["kills"], "keys": result["sent"], "doubled": int(doubled),
             "stuck": len(result["unanswered"]), "stuck_made": int(stuck_made),
             "lost": result["answered"] - (int(made) - int(stuck_made))}
    for name, count in found.items():
        row[name] = row.get(name, 0) + count
    row["most"] = max(row.get("most", 0), int(most))
