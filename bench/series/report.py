"""bench/RESULTS.md, and the figures in docs/performance.md, from the results of all series."""

CALLS = {
    "none": "no idempotency at all (the ceiling)",
    "powertools": "`@aws-lambda-powertools/idempotency` on Redis",
    "node-idempotency": "`@node-idempotency/core` on Redis",
    "stack": "Redis SETNX + record table + update + Redis SET",
    "hand": "hand-written transaction of five statements",
    "calls": "`idem_claim` and `idem_finish` in one transaction",
    "execute": "one `idem_execute`",
}

WORKFLOW_TARGETS = {"none": 0.85, "powertools": 1.2, "stack": 2.5}


def markdown(results):
    sections = [head(results)]
    for name, section in SECTIONS:
        if name in results["series"]:
            sections.append(section(results["series"][name], results))
    return "\n".join(sections)


def table(columns, rows):
    lines = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    return "\n".join(lines + ["| " + " | ".join(str(c) for c in row) + " |" for row in rows]) + "\n"


def figure(value):
    """Three significant digits are more than these measurements carry."""
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return format(round(value, -max(0, len(str(int(abs(value)))) - 3)), ",.0f")
    return "%.3g" % value


def spread(summary, digits=figure):
    return "%s (%s to %s)" % (digits(summary["median"]), digits(summary["min"]),
                              digits(summary["max"]))


def two(value):
    return "%.2f" % value


def met(value, target, least=True):
    return "yes" if (value >= target if least else value <= target) else "**no**"


def head(results):
    machine, versions = results["machine"], results["versions"]
    quick = ("\n**A quick run, to see that everything works. Its figures mean nothing.**\n"
             if results["quick"] else "")
    return """# Results
%s
Written by `%s` on %s; how each series is measured is in [README.md](README.md), what the figures
mean for you in [docs/performance.md](../docs/performance.md).

- Machine: %s, %d cores, %d GiB, Linux %s; one `fdatasync` of 8 kB takes %d µs. Clients and servers share
  the cores.
- Versions: %s.
- Figures are medians, with the smallest and the largest in parentheses; ratios are of runs that followed each
  other, so their median need not be the ratio of the medians.
""" % (quick, results["command"], results["date"], machine["cpu"], machine["cores"],
       machine["memory_gib"], machine["kernel"], machine["fdatasync_us"],
       ", ".join("%s %s" % (name, version)
                 for name, version in versions.items()))


def limit(s, results):
    rows = [[r["name"], r["clients"], {"on": "on", "off": "off", "either": "-"}[r["mode"]],
             spread(r["ours"]), spread(r["bare"]), spread(r["ratio"], two), two(r["target"]),
             met(r["ratio"]["median"], r["target"])] for r in s["rows"]]
    return """## Against the limit

Transactions per second by pgbench, prepared, %s records present, %d s a run. Ours against plain SQL on a table
with the same columns, indexes, constraints and fillfactor. `sync` is `synchronous_commit`; where it is off, so
is `idempotency.durable_claims`; replays and look-ups write nothing.

![ratios](../docs/bench-limit.svg)

""" % (figure(s["records"]), s["seconds"]) + table(
        ["ours / bare", "clients", "sync", "ours, tps", "bare, tps", "ratio", "target", "met"], rows)


def instructions(s, results):
    rows = [[r["name"], figure(r["ours"]), figure(r["bare"]), two(r["ratio"])] for r in s["rows"]]
    others = [[name, figure(count)] for name, count in s["others"].items()]
    return """## Instructions per call

What a backend executes in user space for one transaction of the same scripts (callgrind, %d transactions each);
the ratio is bare / ours, so more than 1 means that ours needs fewer.

""" % s["calls"] + table(["ours / bare", "ours", "bare", "ratio"], rows) + "\n" + table(
        ["for comparison", "instructions"], others)


def workflows(s, results):
    text = """## Against what people use

One order per request, its commit durable; %d requests at once from one Node.js process, %d s a run. PostgreSQL
is the same server for all; Redis listens on a Unix socket and persists nothing, which is the fastest it can be.

![orders per second](../docs/bench-workflows.svg)

""" % (s["concurrency"], s["seconds"])
    for duplicates, title in ((0, "Every key once"), (0.3, "30 % of the requests are duplicates")):
        of = [r for r in s["rows"] if r["duplicates"] == duplicates]
        ours = next(r for r in of if r["name"] == "execute")
        rows = [[CALLS[r["name"]], spread(r["rate"]), spread(r["p50"]), spread(r["p99"]),
                 spread(ours["to"][r["name"]], two) if r["name"] in ours["to"] else "-"]
                for r in of]
        text += "### %s\n\n" % title + table(
            ["", "requests/s", "median, ms", "p99, ms", "`idem_execute` / this"], rows) + "\n"
        if duplicates == 0:
            text += targets(ours, of)
        else:
            text += "How they were answered (in all runs): " + "; ".join(
                "%s: %d executed, %d replayed, %d told to come back" % (
                    CALLS[r["name"]], r["counts"]["executed"], r["counts"]["replayed"],
                    r["counts"]["busy"]) for r in of) + ".\n\n"
    return text


def targets(ours, of):
    rows = [["`idem_execute` / " + CALLS[name], two(ours["to"][name]["median"]), two(target),
             met(ours["to"][name]["median"], target)] for name, target in WORKFLOW_TARGETS.items()]
    best = min(r["p99"]["median"] for r in of if r["name"] not in ("execute", "none"))
    rows.append(["p99 of `idem_execute`, ms, against the best of the others with keys",
                 figure(ours["p99"]["median"]), figure(best),
                 met(ours["p99"]["median"], best, least=False)])
    return table(["", "measured", "target", "met"], rows) + "\n"


def killed(s, results):
    rows = [[CALLS[r["name"]], r["kills"], r["keys"], r["doubled"], r["most"], r["stuck"],
             r["stuck_made"]] for r in s["rows"]]
    return """## With the worker killed

The same work by a worker that gets SIGKILL at random; clients send again, under the same key, whatever was not
answered, and ask for %d s more after the last kill. Orders are counted per key in the database.

""" % s["patience"] + table(["", "kills", "keys", "keys with more than one order",
                             "most orders of one key", "keys never answered",
                             "of these with an order"], rows)


WAYS = {"wait": "`idem_claim` with `wait`", "poll": "a client that asks every 100 ms",
        "lock": "a hand-written INSERT, woken by the lock manager"}


def storm(s, results):
    rows = [[WAYS[r["name"]], spread(r["p50"]), spread(r["p99"]), spread(r["max"]),
             spread(r["cores"], two)] for r in s["rows"]]
    wait = next(r for r in s["rows"] if r["name"] == "wait")
    return """## Duplicate storm

%d sessions ask for one key that a transaction holds for %d ms. From the holder's COMMIT being sent to each
answer, in ms, and the share of a core that all %d backends together use while they wait.

![delays](../docs/bench-storm.svg)

""" % (s["waiters"], s["hold"], s["waiters"]) + table(
        ["", "median", "p99", "last", "cores while waiting"], rows) + "\n" + table(
        ["", "measured", "target", "met"],
        [["p99 of `idem_claim` with `wait`, ms", figure(wait["p99"]["median"]), "25",
          met(wait["p99"]["median"], 25, least=False)],
         ["cores while waiting", two(wait["cores"]["median"]), "0.30",
          met(wait["cores"]["median"], 0.3, least=False)]])


def growth(s, results):
    sizes = [str(n) for n in s["sizes"]]
    rows = [[r["name"]] + [spread(r["us"][n]) for n in sizes] + [
        spread(r["ratio"], two),
        met(r["ratio"]["median"], 1.6, least=False) if "sweep" not in r["name"] else "-"]
        for r in s["rows"]]
    return """## Growth

µs per call as one client sees it (commit not waited for), at several numbers of records. New keys fall all over
the index; the records that expire are strewn all over the table.

![time per call](../docs/bench-growth.svg)

""" + table([""] + ["%s records" % format(n, ",d") for n in s["sizes"]] +
            ["largest / smallest", "at most 1.6"], rows)


def mib(size):
    return "%.1f MiB" % (size / 2**20)


def steady(s, results):
    live = s["live"]
    rows = [
        ["table, at most, second half", mib(s["table_most"]), "2 x %s live" % mib(live["table"]),
         met(s["table_most"] / live["table"], 2, least=False)],
        ["indexes, at most, second half", mib(s["index_most"]), "2 x %s live" % mib(live["indexes"]),
         met(s["index_most"] / live["indexes"], 2, least=False)],
        ["sweep capacity, records/s", figure(s["capacity"]), "5 x %d claims/s" % s["rate"],
         met(s["capacity"], 5 * s["rate"])],
    ]
    if s["p99_during"] is not None:
        rows.insert(2, ["p99 during a sweep, ms", figure(s["p99_during"]),
                        "2 x %s without" % figure(s["p99_without"]),
                        met(s["p99_during"], 2 * s["p99_without"], least=False)])
    return """## Steady state

%d s at %d claims per second (claim + finish in one transaction, durable), ttl %d s, `CALL idem_sweep_all(%d, '%s')`
every %d s, autovacuum_naptime %s and otherwise the settings of the table. %s records were claimed, %s swept in %d sweeps,
which took %.1f %% of the time; %d transactions met one. At the end %s records were live; "live" below is what
they take in a table that never held anything else.

![sizes](../docs/bench-steady.svg)

""" % (s["seconds"], s["rate"], s["ttl"], s["batch"], s["pause"], s["sweep"], s["naptime"], format(s["transactions"], ",d"),
       format(s["swept"], ",d"), s["sweeps"], 100 * s["sweep_share"], s["n_during"],
       format(live["records"], ",d")) + table(["", "measured", "target", "met"], rows)


def bytes_(s, results):
    ways = [[w["name"], "%.0f" % w["wal"]] for w in s["ways"]]
    whole = s["indexes"][0]
    indexes = [[i["without"].replace("bare", "idem"),
                "%.0f" % (whole["transactional"] - i["transactional"]),
                "%.0f" % (whole["leased"] - i["leased"])] for i in s["indexes"][1:]]
    disk = [[name, "%.0f" % size] for name, size in s["disk"]]
    columns = ", ".join("%s %.0f" % (name, size) for name, size in s["columns"])
    return """## Bytes

WAL per transaction, without full-page images, %s transactions each:

""" % format(s["records"], ",d") + table(["", "bytes of WAL"], ways) + """
WAL that each index costs an insert (the difference that its absence makes):

""" + table(["index", "transactional", "leased"], indexes) + """
Disk per record, after random claims, a finish with a response of 80 bytes, and a vacuum:

""" + table(["", "bytes"], disk) + """
of which the columns, before alignment: %s; the row's header takes 32.

What the fillfactor does, eight clients that claim and finish in random order; "reused" is a table of which every other
record was deleted and the space vacuumed:

""" % columns + table(
        ["response, bytes", "fillfactor", "finishes that are HOT", "the same, reused",
         "table, bytes per record", "WAL, bytes"],
        [[f["response"], f["fillfactor"], "%.1f %%" % (100 * f["hot"]),
          "%.1f %%" % (100 * f["hot_reused"]), "%.0f" % f["table"], "%.0f" % f["wal"]]
         for f in s["fillfactors"]])


def memory(s, results):
    rows = [[r["name"], "%+d" % r["contexts"], "%+.0f KiB" % (r["process"] / 1024),
             "%+.2f" % (r["process"] / s["calls"])] for r in s["rows"]]
    return """## Memory

What a backend grew by over %s calls, after some thousands before: PostgreSQL's memory contexts, and the
process's own pages.

""" % format(s["calls"], ",d") + table(
        ["", "contexts, bytes", "process", "bytes per call"], rows)


SECTIONS = [("limit", limit), ("instructions", instructions), ("workflows", workflows),
            ("killed", killed), ("storm", storm), ("growth", growth), ("steady", steady),
            ("bytes", bytes_), ("memory", memory)]


# ---------------------------------------------------------------------------
# The figures in docs/performance.md
# ---------------------------------------------------------------------------
BEGIN = "<!-- figures: script/bench writes what is between these marks -->\n"
END = "<!-- end of figures -->"


def with_figures(document, results):
    """The document, with the figures of these results in the place of those it has."""
    before, _, rest = document.partition(BEGIN)
    _, _, after = rest.partition(END)
    series = results["series"]
    blocks = [block(series) for needs, block in FIGURES if all(n in series for n in needs)]
    return before + BEGIN + "\n" + "\n".join(blocks) + END + after


def expectations(series):
    rows = []
    counts = {r["name"]: r for r in series["instructions"]["rows"]}
    for r in series["limit"]["rows"]:
        if r["clients"] == 8 and "insert-first" not in r["name"]:
            sync = {"on": ", durable", "off": ", not durable", "either": ""}[r["mode"]]
            rows.append([r["name"] + sync, figure(r["ours"]["median"]), two(r["ratio"]["median"]),
                         figure(counts[r["name"]]["ours"])])
    return """## What to expect

Calls per second of 8 clients on one small machine that they share with the server; relative to plain SQL that writes or
reads the same row of the same table; and what the server executes for each.

![throughput relative to bare SQL](bench-limit.svg)

""" + table(["ours / bare", "per second", "relative", "instructions"], rows)


def applications(series):
    rows = [[CALLS[r["name"]], figure(r["rate"]["median"]), figure(r["p99"]["median"])]
            for r in series["workflows"]["rows"] if r["duplicates"] == 0]
    return """Whole requests that create one order, %d at once, from one Node.js process:

![orders per second](bench-workflows.svg)

""" % series["workflows"]["concurrency"] + table(["", "per second", "p99, ms"], rows)


def retention(series):
    s = series["bytes"]
    disk = sum(size for name, size in s["disk"] if "row as stored" not in name)
    wal = {w["name"]: w["wal"] for w in s["ways"]}
    written = wal["claim + finish in one transaction"] + wal["sweep of one record"]
    rows = [[format(rate, ",d"), format(rate * 86400, ",d"), amount(rate * 86400 * disk),
             amount(rate * written) + "/s", amount(rate * 86400 * written)]
            for rate in (1000, 10000, 100000)]
    return """## Disk and WAL

A finished record with a key of 20 bytes and a response of 80 takes %.0f bytes, indexes included. Claim and finish in one
transaction write %.0f bytes of WAL, a leased claim and its finish %.0f, and the sweep %.0f for each record, besides the
full-page images after each checkpoint. With a ttl of a day that is

""" % (disk, wal["claim + finish in one transaction"], wal["leased claim, commit, finish, commit"],
       wal["sweep of one record"]) + table(
        ["claims per second", "records", "on disk", "WAL", "WAL per day"], rows) + """
Longer keys and responses come on top, byte for byte: a key is stored in the row and in the index.
"""


def amount(size):
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return "%.3g %s" % (size, unit)
        size /= 1000
    return "%.3g TB" % size


FIGURES = [(("limit", "instructions"), expectations), (("workflows",), applications),
           (("bytes",), retention)]
