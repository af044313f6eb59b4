"""What the figures were measured on."""

import os
import re
import subprocess
import time

from . import db


def output(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()
    except FileNotFoundError:
        return ""


def describe(command):
    return {
        "command": command,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": {
            "cpu": cpu(),
            "cores": os.cpu_count(),
            "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
            "kernel": os.uname().release,
            "fdatasync_us": fdatasync(),
        },
        "versions": {
            "PostgreSQL": db.value("SHOW server_version", "postgres"),
            "Redis": re.sub(r".*v=([\d.]+).*", r"\1", output("redis-server", "--version")),
            "Node.js": output("node", "--version").lstrip("v"),
            **packages(),
        },
    }


def cpu():
    with open("/proc/cpuinfo") as f:
        match = re.search(r"model name\s*: (.*)", f.read())
    return match.group(1) if match else os.uname().machine


def packages():
    import json
    path = os.path.join(os.path.dirname(__file__), "..", "node", "package.json")
    with open(path) as f:
        return json.load(f)["dependencies"]


def fdatasync():
    """What a durable commit costs at least: the median of 200 small synced writes."""
    path = os.path.join(db.WORK, "fdatasync")
    times = []
    with open(path, "wb", buffering=0) as f:
        f.write(bytes(1 << 20))
        os.fsync(f.fileno())
        for i in range(200):
            f.seek(i % 128 * 8192)
            f.write(bytes(8192))
            started = time.perf_counter()
            os.fdatasync(f.fileno())
            times.append(time.perf_counter() - started)
    os.unlink(path)
    return round(sorted(times)[100] * 1e6)
