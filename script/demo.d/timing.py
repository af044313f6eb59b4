"""The two times that a caller feels, as seen on this machine.

    refusal    idem_claim with wait = 0 on a key that another session has
               claimed and not committed: how long until "in_progress".  The
               claim is committed by nobody before the answer is there, so an
               answer at all proves that nothing was waited for.
    hand-over  idem_claim with a wait on such a key: from the moment the holder
               sends its COMMIT to the moment the waiter has the replay.  The
               holder commits once the server shows the waiter waiting, and a
               random while after that.

Times depend on the machine, so they are shown and judged by nobody; what was
answered is judged.
"""

import random
import time
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import NamedTuple

import psycopg

CLAIM = """
    SELECT outcome, response_body
    FROM idem_claim('timing', %s, 'clock', request => '{"ask": 1}', wait => %s)"""

FINISH = "SELECT idem_finish('timing', %s, 'clock', response_body => %s)"

WAITING = """
    SELECT count(*) FROM pg_stat_activity
    WHERE pid = %s AND state = 'active' AND wait_event_type NOT IN ('Client', 'IO', 'LWLock')"""


class Times(NamedTuple):
    milliseconds: list
    wrong: int          # answers that were not what they should be

    def row(self):
        ms = sorted(self.milliseconds)
        return [f"{ms[0]:.1f} ms", f"{median(ms):.1f} ms", f"{ms[-1]:.1f} ms"]


def refusal(count):
    ms, wrong = [], 0
    with shop() as holder, shop(autocommit=True) as asker:
        for n in range(count):
            key = f"refusal-{n}"
            holder.execute(CLAIM, [key, "0"])
            began = time.perf_counter()
            outcome = asker.execute(CLAIM, [key, "0"]).fetchone()[0]
            ms.append((time.perf_counter() - began) * 1000)
            wrong += outcome != "in_progress"
            holder.rollback()
    return Times(ms, wrong)


def hand_over(count, seed):
    ms, wrong, rng = [], 0, random.Random(seed)

    def wait(key):
        answer = waiter.execute(CLAIM, [key, "10 s"]).fetchone()
        return answer, time.perf_counter()

    with shop() as holder, shop(autocommit=True) as waiter, \
            psycopg.connect(autocommit=True) as watch, ThreadPoolExecutor(1) as thread:
        for n in range(count):
            key, body = f"hand-over-{n}", rng.randbytes(16).hex()
            holder.execute(CLAIM, [key, "0"])
            holder.execute(FINISH, [key, body])
            waiting = thread.submit(wait, key)
            wait_until_waiting(waiting, watch, waiter.info.backend_pid)
            time.sleep(rng.uniform(0, 0.06))
            began = time.perf_counter()
            holder.commit()
            answer, ended = waiting.result()
            ms.append((ended - began) * 1000)
            wrong += answer != ("replayed", body)
    return Times(ms, wrong)


def wait_until_waiting(waiting, watch, pid):
    """Or until it has its answer, which then comes too early and is wrong."""
    while not waiting.done() and not watch.execute(WAITING, [pid]).fetchone()[0]:
        time.sleep(0.001)


def shop(**options):
    return psycopg.connect(user="shop", **options)
