"""Duplicates at the same moment.

Where the answer must not depend on who is faster, the first request is held in
the middle of its work until all the others have been answered.
"""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from stage import wait_until

AT_ONCE = 50


def check(check, shop):
    for part in (held_order, held_payment, free_for_all):
        part(check, shop)


def held_order(check, shop):
    item = shop.stock("held")
    held(check, shop, "database only", holding_orders(shop), "/orders", "h-1",
         {"item": item, "qty": 1}, lambda: shop.orders(item))


def held_payment(check, shop):
    before = len(shop.provider.asked)
    held(check, shop, "leased", holding_provider(shop), "/payments", "h-2", {"amount": 4000},
         lambda: len(shop.provider.asked) - before)
    check.same(shop.value("SELECT count(*) FROM payments WHERE amount = 4000"), 1,
               "leased: and one payment in our book")


def held(check, shop, what, holding, target, key, body, effects):
    with ThreadPoolExecutor(AT_ONCE) as pool:
        with holding as inside:
            first = pool.submit(shop.alice.send, target, key, body)
            check.that(wait_until(inside), f"{what}: one request is at work")
            others = list(pool.map(lambda _: shop.alice.send(target, key, body),
                                   range(AT_ONCE - 1)))
            other = shop.alice.send(target, key, body | {"more": 1})
        first = first.result()
        again = list(pool.map(lambda _: shop.alice.insist(target, key, body, [201]),
                              range(AT_ONCE - 1)))
    check.same(Counter((reply.verdict, reply.headers.get("retry-after")) for reply in others),
               {((409, "request-in-flight"), "1"): AT_ONCE - 1},
               f"{what}: the {AT_ONCE - 1} others are told so meanwhile, with Retry-After")
    expected = (409, "request-in-flight") if what == "database only" else (
        422, "idempotency-key-reused")
    check.same(other.verdict, expected, f"{what}: so is another request, as far as can be known")
    check.that(first.status == 201 and all(
        reply.replayed and reply.essence == first.essence for reply in again),
        f"{what}: retried, each of them gets the first one's answer")
    check.same(effects(), 1, f"{what}: one effect")


@contextmanager
def holding_orders(shop):
    """Orders stop at their INSERT, the key claimed, until the block ends."""
    with shop.stage.connect(autocommit=False) as conn:
        conn.execute("LOCK TABLE orders IN SHARE MODE")
        yield lambda: waiting(shop)


def waiting(shop):
    return shop.value("SELECT count(*) FROM pg_locks WHERE relation = 'orders'::regclass"
                      " AND NOT granted")


@contextmanager
def holding_provider(shop):
    before = len(shop.provider.asked)
    shop.provider.gate.clear()
    try:
        yield lambda: len(shop.provider.asked) > before
    finally:
        shop.provider.gate.set()


def free_for_all(check, shop):
    """All of them at once, on ten keys: the last byte of each waits at a barrier."""
    item, before = shop.stock("race"), len(shop.provider.asked)
    barrier = threading.Barrier(AT_ONCE)

    def one(number):
        target, body = [("/orders", {"item": item, "qty": 1}),
                        ("/payments", {"amount": 3000})][number % 2]
        key = f"r-{number % 10}"
        call = shop.alice.call(target, key, body).send(end=-1)
        barrier.wait()
        reply = call.send(start=-1).answer()
        if reply.status == 409:
            return key, reply.verdict, shop.alice.insist(target, key, body, [201])
        return key, reply.verdict, reply

    with ThreadPoolExecutor(AT_ONCE) as pool:
        told = list(pool.map(one, range(AT_ONCE)))
    tally = Counter(str(verdict) for _, verdict, _ in told)
    check.say(f"{AT_ONCE} at once on 10 keys: {dict(tally)}")
    check.that({verdict for _, verdict, _ in told} <= {(201, None), (409, "request-in-flight")},
               "each is answered, or told that another is at it")
    check.same(len({(key, reply.essence) for key, _, reply in told}), 10,
               "one answer per key, in the end")
    check.same(sum(not reply.replayed for _, _, reply in told), 10, "once as the first")
    check.same((shop.orders(item), len(shop.provider.asked) - before,
                shop.value("SELECT count(*) FROM payments WHERE amount = 3000")), (5, 5, 5),
               "one effect per key")
