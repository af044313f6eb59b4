"""The transcript in a server's README: its commands are run, and what they
print must be what is shown.

The order of headers is the server's business.  Headers that the README does not
show are not compared; neither are the reason phrase of a status, which servers
word differently, and the random receipts.
"""

import os
import re
import subprocess


def check(check, shop, readme):
    blocks = re.findall(r"^```console\n(.*?)^```$", readme.read_text(), re.M | re.S)
    wanted = list(steps("".join(blocks)))
    printed = run([command for command, _ in wanted], shop)
    for (command, shown), output in zip(wanted, printed, strict=True):
        lines = [plain(line) for line in output.splitlines()]
        missing = [line for line in shown if plain(line) not in lines]
        check.that(not missing, f"as in the README: {command[:70]}",
                   f"missing {missing} in\n{output}")


def steps(text):
    """Each command, and the lines that it shows."""
    for step in re.split(r"^\$ ", text, flags=re.M)[1:]:
        command, *lines = step.splitlines()
        yield command, [line for line in lines if line.strip()]


def run(commands, shop):
    """In one shell, because they build on each other."""
    script = "".join(f"{command}\necho; echo @@\n" for command in commands)
    script = script.replace("localhost:8080", f"127.0.0.1:{shop.port}")
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True,
                          env={**os.environ, "PGDATABASE": shop.stage.database, "no_proxy": "*"})
    return done.stdout.split("@@\n")[:-1]


def plain(line):
    line = re.sub(r"^HTTP/\S+ (\d+).*", r"HTTP \1", line.strip())
    line = re.sub(r"^[A-Za-z-]+:", lambda name: name[0].lower(), line)
    return re.sub(r'"receipt":"[0-9a-f]{32}"', '"receipt":"..."', line)
