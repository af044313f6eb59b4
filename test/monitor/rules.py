#!/usr/bin/python3
"""The alert rules: Prometheus takes them, they fire, and they know their metrics.

promtool checks the syntax and plays the series of alerts_test.yaml.  Every
metric that a rule reads must be one that queries.yaml makes, every rule must
be told of in docs/operations.md, and every one must have been played.
"""

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from common import HERE, MONITORING, tap

OPERATIONS = HERE.parents[1] / "docs" / "operations.md"


def promtool(*arguments):
    done = subprocess.run(["promtool", *arguments], text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)
    return done.returncode, done.stdout


def exported():
    """The names of all metrics, as the exporter makes them."""
    names, namespace = set(), None
    for line in (MONITORING / "queries.yaml").read_text().splitlines():
        if found := re.match(r"(\w+):$", line):
            namespace = found[1]
        elif found := re.match(r"    - (\w+):$", line):
            names.add(f"{namespace}_{found[1]}")
    return names


def main():
    rules = (MONITORING / "alerts.yaml").read_text()
    status, said = promtool("check", "rules", str(MONITORING / "alerts.yaml"))
    tap.ok(status == 0, "promtool takes the rules", said.splitlines())
    with tempfile.TemporaryDirectory() as work:
        for file in (MONITORING / "alerts.yaml", HERE / "alerts_test.yaml"):
            shutil.copy(file, work)
        status, said = promtool("test", "rules", str(Path(work) / "alerts_test.yaml"))
    tap.ok(status == 0, "they fire where they must, and nowhere else", said.splitlines())

    read = set(re.findall(r"\bidempotency_\w+", rules))
    tap.equal(sorted(read - exported()), [], "they read nothing that is not exported")
    alerts = re.findall(r"- alert: (\w+)", rules)
    tests = (HERE / "alerts_test.yaml").read_text()
    for alert in alerts:
        fires = re.search(rf"alertname: {alert}\n\s+exp_alerts:", tests)
        tap.ok(bool(fires), f"{alert} has been seen to fire")
        tap.ok(alert in OPERATIONS.read_text(), f"{alert}: the documentation says what to do")
    tap.finish()


if __name__ == "__main__":
    main()
