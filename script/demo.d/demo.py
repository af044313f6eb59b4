#!/usr/bin/python3
"""The orders demo: runs against the server that PGHOST, PGPORT and PGUSER name
(a superuser of a throw-away cluster), prints what happened, and exits non-zero
if anything that must hold did not.  script/demo brings the cluster.
"""

import argparse
import collections
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "examples" / "orders"))

import psycopg  # noqa: E402

import client  # noqa: E402
import control  # noqa: E402
import orders  # noqa: E402
import plan as timetable  # noqa: E402
import screen  # noqa: E402
import storm as weather  # noqa: E402
import timing  # noqa: E402
import verdict  # noqa: E402
from cron import Scheduler  # noqa: E402
from screen import number, say  # noqa: E402

EXPIRING = 300          # records in each batch that is to expire
MEANINGS = {"claimed": ": 201, the order was written",
            "replayed": ": 201, the stored answer",
            "in_progress": ": 409, so the client sends it again",
            "mismatch": ": 422, another request had this key",
            client.LOST: ", so the client sends it again"}

TTL = "0.3 s"           # theirs
TRIES = 50              # of each time taken
LATE = 120              # seconds by which pg_cron may be late on a busy machine


def main():
    args = arguments()
    with psycopg.connect(autocommit=True) as admin:
        title(admin, args)
        lay_out(admin)
        scheduler = Scheduler(admin)
        jobs = scheduler.schedule()
        scheduler.expire(admin, "storm", EXPIRING, TTL)

    told, doubled = four_statements(), control_doubles(args)
    plan = timetable.draw(args.seed, args.orders)
    storm = run_storm(plan, args)
    with weather.connect() as admin:
        books = verdict.Books(plan, storm, admin)
        show_storm(books)
        times = show_times(args.seed)
        swept = show_sweep(scheduler, jobs, admin, args)
        audit = verdict.Audit(books)
    return conclude([told, doubled, *verdict.checks(books, audit),
                     verdict.another_program(books, audit), *times, swept,
                     verdict.privileges(), *verdict.server_log()], storm.errors, args)


def arguments():
    parser = argparse.ArgumentParser(
        prog="script/demo", description="1,000 orders from clients that retry, double-click, "
        "get cut off and crash; none is lost and none is doubled.")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6),
                        help="what the trouble is drawn from (default: a new one)")
    parser.add_argument("--clients", type=int, default=24, help="default: %(default)s")
    parser.add_argument("--orders", type=enough, default=1000, help="default: %(default)s")
    parser.add_argument("--within", type=float, default=52, metavar="SECONDS",
                        help="do not wait for pg_cron's minute if it comes later than this "
                        "after the start (default: %(default)s)")
    parser.add_argument("--started", type=float, default=time.time(), help=argparse.SUPPRESS)
    return parser.parse_args()


def enough(text):
    """Fewer orders than this might not meet every kind of trouble."""
    if int(text) < 100:
        raise argparse.ArgumentTypeError("100 is the least")
    return int(text)


def title(admin, args):
    versions = dict(admin.execute("SELECT name, default_version FROM pg_available_extensions"))
    server = admin.execute("SHOW server_version").fetchone()[0].split()[0]
    say(screen.dim(f"idempotency {versions['idempotency']}, PostgreSQL {server}, "
                   f"pg_cron {versions['pg_cron']}, {os.cpu_count()} cores, fsync on; "
                   f"seed {args.seed}"))


def lay_out(admin):
    for extension in ("pg_cron", "idempotency"):
        admin.execute(f"CREATE EXTENSION {extension}")
    for script in (HERE.parent.parent / "examples" / "orders" / "schema.sql", HERE / "setup.sql"):
        admin.execute(script.read_text())
    admin.execute(control.TABLE)


def four_statements():
    screen.heading("1. What a newcomer types")
    run = subprocess.run(["psql", "-X", "-q", "-a", "-P", "null=(null)", "-P", "pager=off",
                          "-P", "footer=off", "-U", "shop", "-f", HERE / "four_statements.sql"],
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8")
    for line in run.stdout.rstrip().replace("COMMIT;\n", "COMMIT;\n\n").split("\n"):
        say(screen.bold(line) if line.startswith("--") else line)
    said = [word for word in run.stdout.split() if word in ("claimed", "replayed", "mismatch")]
    return verdict.Check(said == ["claimed", "replayed", "mismatch"] and "ERROR" not in run.stdout,
                         "what the newcomer was told", ", ".join(said))


def control_doubles(args):
    plan = timetable.draw(args.seed, args.orders // 4)._replace(kills=[], crashes=[])
    screen.heading(f"2. {number(len(plan.orders))} orders without it: SELECT, and INSERT "
                   "if there is nothing")
    storm = weather.blow(plan, args.clients, args.seed, control.place_order, weather.LEVELS[:1])
    with weather.connect() as admin:
        doubled = control.doubled(admin)
    screen.table([("requests", len(storm.tries)), ("orders that became two or more", doubled)])
    for error in storm.errors[:1]:
        print(error)
    return verdict.Check(doubled > 0 and not storm.errors,
                         "such trouble does double orders without the extension",
                         number(doubled))


def run_storm(plan, args):
    screen.heading(f"3. {number(len(plan.orders))} orders with it, {args.clients} clients, "
                   "and everything that can go wrong")
    return weather.blow(plan, args.clients, args.seed, orders.place_order, weather.LEVELS)


def show_storm(books):
    plan, storm = books.plan, books.storm
    lost = [one for one in storm.tries if one.outcome == client.LOST]
    outcomes = collections.Counter(one.outcome for one in storm.tries)
    causes = collections.Counter(one.cause for one in lost)
    steps = collections.Counter(client.STEPS[one.step] for one in lost)

    say(f"{number(len(storm.tries))} requests in {storm.seconds:.1f} s. A third of the clients "
        "each run in")
    say("READ COMMITTED, REPEATABLE READ and SERIALIZABLE.")
    say()
    screen.table([*plan.troubles.items(), ("all of them", len(plan.orders))],
                 "Orders, by the trouble they began with")
    screen.table([(f"{name}{meaning}", outcomes[name]) for name, meaning in MEANINGS.items()],
                 "What the clients were told")
    screen.table([*((cause, causes[cause]) for cause in
                    (timetable.CUT, timetable.CUT_AT_COMMIT, timetable.CUT_AFTER_COMMIT,
                     client.BY_SERVER)),
                  ("  backends terminated in the middle of a request", storm.kills),
                  (f"  crash of the whole server (SIGKILL), back after {storm.away:.1f} s",
                   int(bool(storm.crashed)))],
                 "Why there was no answer")
    screen.table([(step, steps[step]) for step in client.STEPS], "How far those requests had come")


def show_times(seed):
    screen.heading("4. The two times that a caller feels")
    refusal, hand_over = timing.refusal(TRIES), timing.hand_over(TRIES, seed)
    screen.grid(["", "least", "median", "most", "aim"], [
        ["wait = 0 against an uncommitted claim", *refusal.row(), "well under 50 ms"],
        ["waiter: from the holder's COMMIT to the replay", *hand_over.row(), "25 ms"]])
    return [verdict.every("claims with wait = 0 answered in_progress before any commit",
                          TRIES - refusal.wrong, TRIES),
            verdict.every("waiters that got the holder's answer, byte for byte",
                          TRIES - hand_over.wrong, TRIES)]


def show_sweep(scheduler, jobs, admin, args):
    screen.heading("5. Expired records, swept by pg_cron")
    if not scheduler.by_second:
        say("This pg_cron schedules by the minute.  A second job runs when it starts, which")
        say("it did again after the crash.")
        say()
    scheduler.wait_until_swept(admin, "storm", LATE, "waiting for pg_cron")

    to_next = scheduler.seconds_to_next()
    if time.time() - args.started + to_next < args.within:
        say(f"Waiting for its next run, at most {to_next:.0f} s away.")
        say()
        scheduler.expire(admin, "minute", EXPIRING, TTL)
        scheduler.wait_until_swept(admin, "minute", to_next + LATE,
                                   f"waiting for job \"sweep\" ({jobs['sweep']})")
    else:
        say(f"Its next run is {to_next:.0f} s away, and not waited for.")
        say()
    runs = scheduler.runs(admin)
    screen.grid(["job", "schedule", "as", "at", "took", "command", "status"], runs[-6:])
    made = sum(scheduler.batches.values())
    left = sum(scheduler.left(admin, batch) for batch in scheduler.batches)
    screen.table([(f"records made with a ttl of {TTL}", made), ("left of them", left)])
    good = [run for run in runs if run[-1] == "succeeded"]
    return verdict.every("expired records deleted by pg_cron's job",
                         made - left if good else 0, made)


def conclude(found, errors, args):
    screen.heading("6. What must hold, and does it")
    for check in found:
        mark = screen.green("  ok") if check.ok else screen.red("FAIL")
        print(f"  {mark}  {check.text} "
              f"{screen.dim('.' * max(2, 68 - len(check.text) - len(check.found)))} {check.found}")
    for error in {text.strip().split("\n")[-1]: text for text in errors}.values():
        print(f"\n{error.strip()}")
    failed = sum(not check.ok for check in found)
    say()
    seconds = f"{time.time() - args.started:.0f} s after installation"
    again = f"script/demo --seed {args.seed}"
    if failed:
        say(screen.red(f"{failed} of {len(found)} do not hold, {seconds}.") + f" Again: {again}")
    else:
        say(screen.green(f"All {len(found)} hold, {seconds}.") + f" Again: {again}")
    return 1 if failed else 0


def terminated(*_):
    """Leave in order, so that the clients' processes end too; once is enough."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(143)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, terminated)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
