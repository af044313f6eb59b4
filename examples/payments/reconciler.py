#!/usr/bin/python3
"""The reconciler: finds out how payments ended that nobody finished.

Runs on a schedule, in as many copies as one likes.  For each record of
idem_unresolved it

  1. takes the record over, for as long as a lease.  Of several reconcilers one
     gets it, and the old owner, should it come back, gets ID001.  This comes
     first: an order whose owner is still at work must not be closed.
  2. asks the provider.  "No such order" is not an end yet: the charge of a
     dead process may still be on the wire or in the provider's queue, and
     would land after we had told the client that nothing was charged.  So the
     order is closed first, and what the provider answers to that is final:
     either a charge came before, or none can come any more.
  3. settles as the provider says, in the transaction that finishes the record.

A reconciler that dies in between leaves a record whose lease runs out, and
every step may be repeated.
"""

import argparse
import sys
import time

import psycopg

from book import LOST, SCOPE, Database, finish, settle
from gateway import Gateway

UNRESOLVED = """
    SELECT key, principal FROM idem_unresolved
    WHERE scope = %s ORDER BY claimed_at LIMIT 100"""

TAKEOVER = "SELECT * FROM idem_takeover(%(scope)s, %(key)s, %(user)s, lease => %(lease)s)"


def reconcile(db, gateway, lease):
    """One pass over what is unresolved now; returns how many were settled."""
    with db.transaction() as cur:
        unresolved = cur.execute(UNRESOLVED, [SCOPE]).fetchall()
    return sum(resolve(db, gateway, lease, dict(scope=SCOPE, key=key, user=user))
               for key, user in unresolved)


def resolve(db, gateway, lease, who):
    """Whether this call settled the record."""
    with db.transaction() as cur:
        claim = cur.execute(TAKEOVER, dict(who, lease=lease)).fetchone()
    if claim.outcome != "claimed":
        return False  # another reconciler was faster, or its owner has finished
    order_no = claim.checkpoint_data["order_no"]
    verdict = last_word(gateway, order_no)
    try:
        with db.transaction() as cur:
            if verdict.final:
                settle(cur, who, claim.token, order_no, verdict, by="reconciler")
            else:
                finish(cur, who, claim.token, "unknown")  # the next pass asks again
    except psycopg.Error as error:
        if error.diag.sqlstate != LOST:
            raise
        return False  # we were too slow, and somebody else goes on
    return verdict.final


def last_word(gateway, order_no):
    verdict = gateway.query(order_no)
    return gateway.expire(order_no) if verdict.status == "absent" else verdict


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--provider-port", type=int, required=True)
    options.add_argument("--provider-timeout", type=float, default=5)
    options.add_argument("--lease", default="60 s", help="longer than a query and an expiry take")
    options.add_argument("--every", type=float, default=60, help="seconds between passes")
    arg = options.parse_args()

    db, gateway = Database(1), Gateway(arg.provider_port, arg.provider_timeout)
    while True:
        try:
            settled = reconcile(db, gateway, arg.lease)
            if settled:
                print(f"settled {settled}", file=sys.stderr, flush=True)
        except psycopg.Error as error:
            print(f"database: {error.diag.sqlstate} {error}", file=sys.stderr, flush=True)
        time.sleep(arg.every)


if __name__ == "__main__":
    main()
