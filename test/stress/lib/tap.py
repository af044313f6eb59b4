"""What the random tests report, and how large and how random they are.

Output is TAP, for prove.  Two environment variables steer a run, named after
the directory of the test, as in STRESS_SEED for those in test/stress:

    NAME_SEED       the seed of every random choice.  It is printed; given
                    again, it makes the same choices, though a race may still
                    end differently.
    NAME_SCALE      multiplies the amount of work; 1 is what CI runs.
"""

import os
import random
import sys
import time

NAME = os.path.basename(os.path.dirname(os.path.abspath(sys.argv[0]))).upper()
SEED = int(os.environ.get(f"{NAME}_SEED") or random.SystemRandom().randrange(1 << 31))
SCALE = float(os.environ.get(f"{NAME}_SCALE") or 1)

SHOWN = 12              # violations shown in full; the rest are counted

_started = time.monotonic()
_done = 0
_failed = 0


def note(text):
    """Something to read, which counts for nothing."""
    for line in str(text).splitlines():
        print("#", line, flush=True)


def scaled(amount, least=1):
    return max(least, round(amount * SCALE))


def ok(passed, name, details=()):
    """One assertion.  details are shown if it fails."""
    global _done, _failed
    _done += 1
    _failed += not passed
    print("ok" if passed else "not ok", _done, "-", name.replace("#", "no. "), flush=True)
    if not passed:
        for line in list(details)[:SHOWN]:
            note(line)
    return passed


def equal(have, want, name):
    ok(have == want, name, [f"have: {have!r}", f"want: {want!r}"])


def none(violations, name):
    """No violation was found; violations is a list of texts."""
    ok(not violations, name,
       [f"{len(violations)} of them, {NAME}_SEED={SEED}", *violations])


def skip(name, reason):
    """One assertion that cannot be made here."""
    global _done
    _done += 1
    print("ok", _done, "-", name, "# SKIP", reason, flush=True)


def begin():
    note(f"{NAME}_SEED={SEED} {NAME}_SCALE={SCALE:g}")


def finish():
    note(f"took {time.monotonic() - _started:.1f} s")
    print(f"1..{_done}", flush=True)
    sys.exit(1 if _failed else 0)
