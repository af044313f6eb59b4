"""What clients write down about themselves, and how it is read back.

A client appends a line before it does something that may take effect, and
another once it knows what came of it.  Nothing else is believed: what the
server did is judged by these lines and by what the server says afterwards.
Each line is one write to a file of that client's own, so a client that is
killed leaves all it knew.  Times are the machine's monotonic clock, which all
processes share, so the order of two operations of different clients is known
unless they overlap.

An operation is
    claim       a leased claim
    takeover    the same by idem_takeover
    settle      effect, finish and COMMIT; also idem_execute
    release     a finish that says nothing was done
    refused     an error of any call, as the server reported it
    forgotten   a COMMIT of a transactional claim that is not finished
    ask         what a lookup said, or a claim that is not kept
and ends as
    ok          acknowledged
    fail        known not to have taken effect
    unknown     nobody told; a line that is missing means the same
"""

import glob
import hashlib
import json
import os
import time
from dataclasses import dataclass
from typing import Optional


@dataclass
class Op:
    id: str
    kind: str
    scope: str
    key: str
    start: int
    end: Optional[int] = None
    status: str = "unknown"
    outcome: Optional[str] = None
    attempt: Optional[int] = None
    digest: Optional[str] = None        # of the response that was given, or is to be stored
    token: Optional[str] = None         # the claim_token of a claim
    prepared: bool = False              # PREPARE TRANSACTION, under the operation's name
    already: bool = False               # idem_finish said: recorded before
    fenced: bool = False                # idem_finish raised ID001
    local: bool = False                 # committed here, not at the standby
    error: Optional[str] = None
    via: str = ""                       # the kind of client


class Diary:
    """The writer."""

    def __init__(self, path, name, via):
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.name, self.via, self.number = name, via, 0

    def _write(self, **line):
        os.write(self.file, (json.dumps(line) + "\n").encode())

    def begin(self, kind, scope, key, **data):
        self.number += 1
        op = f"{self.name}.{self.number}"
        self._write(op=op, kind=kind, scope=scope, key=key, start=time.monotonic_ns(),
                    via=self.via, **data)
        return op

    def end(self, op, status, **data):
        self._write(op=op, end=time.monotonic_ns(), status=status, **data)

    def resolved(self, op, status):
        """What became of the prepared transaction of an operation of somebody's."""
        self._write(op=op, resolved=True, end=time.monotonic_ns(), status=status)

    def saw(self, start, scope, key, kind="ask", **data):
        """An answer that took no effect, so that its question need not be kept."""
        self.number += 1
        self._write(op=f"{self.name}.{self.number}", kind=kind, scope=scope, key=key, start=start,
                    end=time.monotonic_ns(), status="ok", via=self.via, **data)


def read(pattern):
    """All operations in these files, in the order of their beginning.

    A prepared transaction is as good as what the driver made of it later.
    """
    ops, prepared = {}, {}
    for path in glob.glob(pattern):
        with open(path, encoding="utf-8") as lines:
            for line in map(json.loads, lines):
                name = line.pop("op")
                if line.pop("resolved", False):
                    prepared.setdefault(name, {}).update(line)
                elif name in ops:
                    ops[name].update(line)
                else:
                    ops[name] = line
    ops = {name: Op(name, **line) for name, line in ops.items()}
    for name, line in prepared.items():
        ops[name].status, ops[name].end = line["status"], line["end"]
    return sorted(ops.values(), key=lambda op: op.start)


def digest(code, body, headers, data):
    """A stored response, to be compared byte for byte; the bodies in hexadecimal."""
    parts = json.dumps([None if code is None else str(code), body, headers, data])
    return hashlib.sha256(parts.encode()).hexdigest()[:24]
