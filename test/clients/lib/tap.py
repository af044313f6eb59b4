"""Assertions, as TAP for prove."""

import sys

_done = 0
_failed = 0


def note(text):
    for line in str(text).splitlines():
        print("#", line, flush=True)


def ok(passed, name, details=()):
    """One assertion.  details are shown if it fails."""
    global _done, _failed
    _done += 1
    _failed += not passed
    print("ok" if passed else "not ok", _done, "-", name.replace("#", "no. "), flush=True)
    if not passed:
        for text in details:
            note(text)
    return passed


def finish():
    print(f"1..{_done}", flush=True)
    sys.exit(1 if _failed else 0)
