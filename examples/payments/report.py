#!/usr/bin/python3
"""The daily report: compares the shop's book with the provider's.

The last line of defence, and independent of the others: it looks at money
alone, not at keys, records or callbacks.  Exits 1 if the books differ.
"""

import argparse
import sys
from collections import Counter

from book import Database
from gateway import Gateway


def compare(ours, theirs):
    """Differences between two books, each a mapping: order -> list of charges."""
    for order_no in sorted(ours.keys() | theirs.keys()):
        here, there = ours.get(order_no, []), theirs.get(order_no, [])
        if len(there) > 1:
            yield f"{order_no}: charged {len(there)} times by the provider"
        elif not here:
            yield f"{order_no}: charged by the provider, not a succeeded payment here"
        elif not there:
            yield f"{order_no}: a succeeded payment here, not charged by the provider"
        elif here != there:
            yield f"{order_no}: {here[0]} here, {there[0]} at the provider"


def our_book(db):
    with db.transaction() as cur:
        cur.execute("""SELECT order_no, charge_id, amount, currency FROM payment
                       WHERE status = 'succeeded'""")
        return by_order(cur.fetchall())


def by_order(rows):
    book = {}
    for order_no, *charge in rows:
        book.setdefault(order_no, []).append(tuple(charge))
    return book


def totals(book):
    sums = Counter()
    for charges in book.values():
        for _, amount, currency in charges:
            sums[currency] += amount
    return ", ".join(f"{sums[currency] / 100:,.2f} {currency}" for currency in sorted(sums))


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--provider-port", type=int, required=True)
    arg = options.parse_args()

    ours = our_book(Database(1))
    theirs = by_order(Gateway(arg.provider_port, timeout=30).charges())
    print(f"our book:       {sum(map(len, ours.values()))} payments, {totals(ours)}")
    print(f"provider's:     {sum(map(len, theirs.values()))} charges,  {totals(theirs)}")
    differences = list(compare(ours, theirs))
    print(f"differences:    {len(differences)}")
    for line in differences:
        print(f"  {line}")
    sys.exit(1 if differences else 0)


if __name__ == "__main__":
    main()
