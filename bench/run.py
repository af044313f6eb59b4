#!/usr/bin/env python3
"""Run the series against the cluster of PGHOST and write the results.

Called by script/bench, which sets everything up; see bench/README.md.
"""

import argparse
import importlib
import json
import os
import sys
import time
from types import SimpleNamespace

from series import machine

PERFORMANCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "docs",
                           "performance.md")

SERIES = ["limit", "instructions", "workflows", "storm", "bytes", "steady", "growth", "killed",
          "memory"]

# How much of each series makes a result, and how much shows that it works.
FULL = {
    "limit": dict(records=1000000, rounds=5, seconds=3, clients=[1, 8, 32]),
    "instructions": dict(calls=200),
    "workflows": dict(rounds=5, seconds=4, warm=1, concurrency=16),
    "killed": dict(rounds=5, kills=8, concurrency=16, patience=15),
    "storm": dict(rounds=20, waiters=64, hold=200),
    "growth": dict(sizes=[10000, 1000000, 20000000], rounds=5, seconds=5, expired=1000),
    "steady": dict(seconds=600, rate=1000, ttl=180, sweep=5, batch=100, pause="5 ms",
                   naptime="1min", backlog=200000),
    "bytes": dict(records=40000),
    "memory": dict(calls=1000000, warm=20000),
}
QUICK = {
    "limit": dict(records=20000, rounds=2, seconds=1, clients=[8]),
    "instructions": dict(calls=40),
    "workflows": dict(rounds=2, seconds=0.7, warm=0.2, concurrency=16),
    "killed": dict(rounds=1, kills=2, concurrency=16, patience=3),
    "storm": dict(rounds=2, waiters=64, hold=200),
    "growth": dict(sizes=[2000, 20000], rounds=2, seconds=1, expired=250),
    "steady": dict(seconds=10, rate=200, ttl=3, sweep=1, batch=100, pause="1 ms",
                   naptime="1s", backlog=2000),
    "bytes": dict(records=1000),
    "memory": dict(calls=3000, warm=2000),
}


def main():
    arguments = parse()
    sizes = QUICK if arguments.quick else FULL
    results = earlier(arguments.out)
    results.update(machine.describe(arguments.command))
    results["quick"] = arguments.quick
    for name in arguments.only or SERIES:
        started = time.monotonic()
        size = SimpleNamespace(**sizes[name], quick=arguments.quick)
        if name == "growth" and arguments.records:
            size.sizes = [n for n in size.sizes if n < arguments.records] + [arguments.records]
        say(name, "begins")
        results["series"][name] = importlib.import_module("series." + name).run(
            size, lambda message, name=name: say(name, message))
        results["series"][name]["took"] = round(time.monotonic() - started)
        say(name, "done after %d s" % (time.monotonic() - started))
        write(arguments.out, results)
    print(open(os.path.join(arguments.out, "RESULTS.md")).read())


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--command", required=True)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--records", type=int)
    parser.add_argument("--only", action="append", choices=SERIES)
    return parser.parse_args()


def earlier(out):
    """The results that script/bench laid there to be added to."""
    try:
        with open(os.path.join(out, "results.json")) as f:
            return json.load(f)
    except FileNotFoundError:
        return {"series": {}}


def write(out, results):
    from series import plots, report

    with open(os.path.join(out, "results.json"), "w") as f:
        json.dump(results, f, indent=1, sort_keys=True)
        f.write("\n")
    with open(os.path.join(out, "RESULTS.md"), "w") as f:
        f.write(report.markdown(results))
    with open(PERFORMANCE) as f, open(os.path.join(out, "performance.md"), "w") as g:
        g.write(report.with_figures(f.read(), results))
    for name, svg in plots.drawn(results).items():
        with open(os.path.join(out, "bench-%s.svg" % name), "w") as f:
            f.write(svg)


def say(name, message):
    print("== %s %s: %s" % (time.strftime("%H:%M:%S"), name, message), flush=True)


if __name__ == "__main__":
    sys.exit(main())
