"""The plots, as SVG, from the results of all series."""

from xml.sax.saxutils import escape

OURS, OTHER, TARGET = "#1f6f8b", "#b8b8b8", "#c0392b"
LINES = [OURS, "#d9822b", "#5c8a3a"]
WIDTH = 760

NAMES = {
    "none": "no idempotency", "powertools": "Powertools, Redis",
    "node-idempotency": "node-idempotency, Redis", "stack": "Redis + record table",
    "hand": "hand-written transaction", "calls": "idem_claim + idem_finish",
    "execute": "idem_execute",
}


def drawn(results):
    series = results["series"]
    return {name: draw(series[name]) for name, draw in PLOTS.items() if name in series}


def text(x, y, what, anchor="start", size=12, weight="normal", fill="#222"):
    return ('<text x="%.1f" y="%.1f" text-anchor="%s" font-size="%d" font-weight="%s"'
            ' fill="%s">%s</text>' % (x, y, anchor, size, weight, fill, escape(str(what))))


def line(x1, y1, x2, y2, stroke="#ccc", width=1, dash=""):
    return ('<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s" stroke-width="%g"%s/>'
            % (x1, y1, x2, y2, stroke, width, ' stroke-dasharray="%s"' % dash if dash else ""))


def document(height, title, parts):
    return "\n".join([
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif"'
        ' role="img">' % (WIDTH, height),
        "<title>%s</title>" % escape(title),
        '<rect width="%d" height="%d" fill="#fff"/>' % (WIDTH, height),
        text(16, 24, title, size=15, weight="bold"), *parts, "</svg>", ""])


def short(value):
    if value >= 1000:
        return format(round(value, -max(0, len(str(int(value))) - 3)), ",.0f")
    return "%.3g" % value


def bars(title, rows, mark=None, digits=None):
    """Horizontal bars; a row is (label, summary, colour, target or None)."""
    left, right, top, step = 290, 110, 40, 26
    most = max(max(s["max"], t or 0) for _, s, _, t in rows) * 1.02
    x = lambda v: left + (WIDTH - left - right) * v / most
    parts = []
    for i, (label, s, colour, target) in enumerate(rows):
        y = top + i * step
        parts += [text(left - 8, y + 15, label, "end"),
                  '<rect x="%d" y="%d" width="%.1f" height="%d" fill="%s"/>'
                  % (left, y + 3, x(s["median"]) - left, step - 8, colour),
                  line(x(s["min"]), y + step / 2 - 1, x(s["max"]), y + step / 2 - 1, "#222", 1.5),
                  text(max(x(s["max"]), x(target or 0)) + 8, y + 15, (digits or short)(s["median"]))]
        if target:
            parts.append(line(x(target), y, x(target), y + step - 2, TARGET, 2))
    height = top + len(rows) * step + 30
    note = "bars: median; lines: smallest to largest run"
    parts.append(text(left, height - 12, note + ("; red: " + mark if mark else ""), size=11,
                      fill="#666"))
    return document(height, title, parts)


def ticks(most):
    step = 10 ** len(str(int(most))) / 100
    while most / step > 6:
        step *= 2 if most / step < 12 else 5
    return [step * i for i in range(int(most / step) + 1)]


def curves(title, lines, x_of, x_labels, unit):
    """Lines; each is (label, colour, dash, [(x, y)])."""
    left, right, top, height = 70, 190, 44, 340
    bottom = height - 40
    most = max(y for _, _, _, points in lines for _, y in points) * 1.1
    span = (x_of(min(x for _, _, _, p in lines for x, _ in p)),
            x_of(max(x for _, _, _, p in lines for x, _ in p)))
    px = lambda x: left + (WIDTH - left - right) * (x_of(x) - span[0]) / ((span[1] - span[0]) or 1)
    py = lambda y: bottom - (bottom - top) * y / most
    parts = []
    for y in ticks(most):
        parts += [line(left, py(y), WIDTH - right, py(y)),
                  text(left - 8, py(y) + 4, short(y), "end", 11)]
    for x, label in x_labels:
        parts.append(text(px(x), bottom + 18, label, "middle", 11))
    parts.append(text(left, bottom + 34, unit, size=11, fill="#666"))
    placed = []
    for label, colour, dash, points in lines:
        parts.append('<polyline fill="none" stroke="%s" stroke-width="2"%s points="%s"/>' % (
            colour, ' stroke-dasharray="%s"' % dash if dash else "",
            " ".join("%.1f,%.1f" % (px(x), py(y)) for x, y in points)))
        y = py(points[-1][1]) + 4
        while any(abs(y - other) < 14 for other in placed):
            y -= 14
        placed.append(y)
        parts.append(text(WIDTH - right + 8, y, label, fill=colour))
    return document(height, title, parts)


def limit(s):
    clients = 8 if any(r["clients"] == 8 for r in s["rows"]) else s["rows"][0]["clients"]
    rows = [("%s%s" % (SHORT[r["name"]], {"on": ", sync", "off": ", async", "either": ""}[r["mode"]]),
             r["ratio"], OURS, r["target"]) for r in s["rows"] if r["clients"] == clients]
    return bars("Throughput relative to bare SQL, %d clients" % clients, rows, "target",
                "{:.2f}".format)


SHORT = {
    "claim of a finished key / SELECT by primary key": "replay / SELECT",
    "claim of a finished key / insert-first function": "replay / insert-first function",
    "idem_lookup / SELECT by primary key": "lookup / SELECT",
    "fresh leased claim / INSERT ON CONFLICT": "leased claim / INSERT",
    "claim + finish in one transaction / INSERT + UPDATE": "claim + finish / INSERT + UPDATE",
    "leased claim, commit, finish, commit / INSERT, UPDATE": "leased, two commits / same",
}


def instructions(s):
    rows = []
    for r in s["rows"]:
        name, bare = SHORT[r["name"]].split(" / ")
        for label, key, colour in ((name, "ours", OURS), (bare if bare != "same" else
                                                          "INSERT, UPDATE, two commits", "bare", OTHER)):
            summary = dict.fromkeys(("median", "min", "max"), r[key] / 1000)
            if label not in [row[0] for row in rows]:
                rows.append((label, summary, colour, None))
    return bars("Thousand instructions per transaction in the backend", rows)


def workflows(s):
    rows = [(NAMES[r["name"]] + (", 30 % dupl." if r["duplicates"] else ""), r["rate"],
             OURS if r["name"] in ("calls", "execute") else OTHER, None) for r in s["rows"]]
    return bars("Orders per second, %d requests at once" % s["concurrency"], rows)


def storm(s):
    names = {"wait": "idem_claim with wait", "poll": "asking every 100 ms", "lock": "blocking INSERT"}
    rows = [("%s, %s" % (names[r["name"]], q), r[q], OURS if r["name"] == "wait" else OTHER,
             25 if (r["name"], q) == ("wait", "p99") else None)
            for r in s["rows"] for q in ("p50", "p99")]
    return bars("From the holder's commit to the waiters' answers, ms", rows, "target")


def growth(s):
    from math import log10
    lines = [(r["name"], LINES[i], "", [(n, r["us"][str(n)]["median"]) for n in s["sizes"]])
             for i, r in enumerate(s["rows"])]
    return curves("µs per call by the number of records", lines, log10,
                  [(n, format(n, ",d")) for n in s["sizes"]], "records, logarithmic")


def steady(s):
    points = lambda key: [(p["at"], p[key] / 2**20) for p in s["samples"]]
    flat = lambda size: [(p["at"], size / 2**20) for p in s["samples"]]
    lines = [("table", LINES[0], "", points("table")), ("indexes", LINES[1], "", points("indexes")),
             ("table, live only", LINES[0], "4 4", flat(s["live"]["table"])),
             ("indexes, live only", LINES[1], "4 4", flat(s["live"]["indexes"]))]
    last = s["samples"][-1]["at"]
    return curves("MiB over time at %d claims per second, ttl %d s" % (s["rate"], s["ttl"]), lines,
                  lambda x: x, [(last * i / 5, "%.0f s" % (last * i / 5)) for i in range(6)], "")


PLOTS = {"limit": limit, "instructions": instructions, "workflows": workflows, "storm": storm,
         "growth": growth, "steady": steady}
