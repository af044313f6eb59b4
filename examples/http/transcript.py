"""The transcript in a server's README: its commands are run, and what they
print must be what is shown.

A line of the README may leave out what varies; headers that it does not show
are not compared, and random receipts are taken as equal.
"""

import re
import subprocess


def check(check, shop, readme):
    blocks = re.findall(r"^```console\n(.*?)^```$", readme.read_text(), re.M | re.S)
    for command, shown in steps("".join(blocks)):
        command = command.replace("localhost:8080", f"127.0.0.1:{shop.port}")
        printed = subprocess.run(["bash", "-c", command], capture_output=True, text=True).stdout
        lines = iter([plain(line) for line in printed.splitlines()])
        missing = [line for line in shown if not any(plain(line) == got for got in lines)]
        check.that(not missing, f"as in the README: {command.splitlines()[0][:60]}",
                   f"missing {missing} in\n{printed}")


def steps(text):
    """(command, lines shown) of each: commands begin with $ and go on with >."""
    for step in re.split(r"^\$ ", text, flags=re.M)[1:]:
        lines = step.splitlines()
        command = [lines.pop(0)]
        while lines and lines[0].startswith("> "):
            command.append(lines.pop(0)[2:])
        yield "\n".join(command), [line for line in lines if line.strip()]


def plain(line):
    """Header names in any case; the same receipt for all."""
    line = re.sub(r"^([A-Za-z-]+):", lambda name: name[0].lower(), line.strip())
    return re.sub(r'"receipt":"[0-9a-f]{32}"', '"receipt":"..."', line)
