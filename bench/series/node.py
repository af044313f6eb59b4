"""Running the Node.js driver."""

import json
import os
import subprocess

DRIVER = os.path.join(os.path.dirname(__file__), "..", "node", "driver.mjs")


def drive(what, **options):
    """One object per result that the driver prints."""
    done = subprocess.run(["node", DRIVER, what, json.dumps(options)], text=True,
                          capture_output=True)
    if done.returncode != 0:
        raise RuntimeError("%s: %s" % (what, done.stderr.strip()[-2000:]))
    return [json.loads(line) for line in done.stdout.splitlines()]


def schema():
    """The tables of the workflows, as the driver defines them."""
    source = os.path.join(os.path.dirname(DRIVER), "variants.mjs")
    return subprocess.run(
        ["node", "--input-type=module", "-e",
         "import {SCHEMA} from %s; console.log(SCHEMA); process.exit(0)" % json.dumps(source)],
        check=True, text=True, capture_output=True).stdout
