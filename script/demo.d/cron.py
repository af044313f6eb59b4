"""The sweep, run by pg_cron: records that expire, and seeing them go.

pg_cron runs jobs by the second from 1.5 on.  An older one knows whole minutes
only, and the next may be as far away as that.  So there it gets two jobs: one
by the minute, and one for the scheduler's start, which the crash in the middle
of the storm brings about.  The minute is waited for if it comes in time.
"""

import re
import time

import psycopg

import screen

SWEEP = "CALL idem_sweep_all()"

EXPIRING = """
    SELECT count(idem_finish('quote', c.key, 'customer-1', token => claim.token,
                             response_body => '{"price": 42}'))
    FROM (SELECT %(batch)s || '-' || n AS key FROM generate_series(1, %(count)s) n) c,
         idem_claim('quote', c.key, 'customer-1', ttl => %(ttl)s) claim"""

LIVE = "SELECT count(*) FROM idem_record WHERE scope = 'quote' AND expires_at > clock_timestamp()"

LEFT = "SELECT count(*) FROM idem_record WHERE scope = 'quote' AND key LIKE %s || '-%%'"

UNDER_WAY = """
    SELECT count(*) FROM cron.job_run_details WHERE status NOT IN ('succeeded', 'failed')"""

RUNS = """
    SELECT j.jobname, j.schedule, j.username, to_char(d.start_time, 'HH24:MI:SS') AS started,
           (extract(epoch FROM d.end_time - d.start_time) * 1000)::int || ' ms' AS took,
           d.command, d.status
    FROM cron.job_run_details d JOIN cron.job j USING (jobid) ORDER BY d.runid"""


class Scheduler:
    def __init__(self, admin):
        version = admin.execute(
            "SELECT extversion FROM pg_extension WHERE extname = 'pg_cron'").fetchone()[0]
        self.by_second = tuple(map(int, re.findall(r"\d+", version)[:2])) >= (1, 5)
        self.batches = {}       # name of a batch of expiring records -> how many

    def schedule(self):
        """As the role that may sweep and nothing else of note."""
        jobs = {"sweep": "2 seconds"} if self.by_second else {
            "sweep": "* * * * *", "sweep-at-start": "@reboot"}
        with psycopg.connect(user="sweeper", autocommit=True) as conn:
            for job in jobs.items():
                conn.execute("SELECT cron.schedule(%s, %s, %s)", [*job, SWEEP])
        return jobs

    def expire(self, admin, batch, count, ttl):
        """Have the shop make records that expire, and wait until they have."""
        with psycopg.connect(user="shop") as conn:
            self.batches[batch] = conn.execute(
                EXPIRING, dict(batch=batch, count=count, ttl=ttl)).fetchone()[0]
        while admin.execute(LIVE).fetchone()[0]:
            time.sleep(0.01)

    def seconds_to_next(self):
        """How far away, at most, is the next run that records made now expire before."""
        if self.by_second:
            return 2
        seconds = 60 - time.time() % 60
        return seconds if seconds > 1.5 else seconds + 60

    def wait_until_swept(self, admin, batch, seconds, why):
        """Wait for the records to go, and for the job that took them to say so."""
        give_up = time.monotonic() + seconds
        while time.monotonic() < give_up:
            left = self.left(admin, batch)
            if left == 0 and admin.execute(UNDER_WAY).fetchone()[0] == 0:
                break
            screen.progress(f"{why}: {left} expired records, "
                            f"at most {give_up - time.monotonic():.0f} s more")
            time.sleep(0.1)
        screen.progress("")

    def left(self, admin, batch):
        return admin.execute(LEFT, [batch]).fetchone()[0]

    def runs(self, admin):
        return admin.execute(RUNS).fetchall()
