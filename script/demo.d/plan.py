"""What the clients of the demo will do: drawn from the seed, before they start.

A plan is a timetable of sends.  Every order has a first send and some trouble:
it is retried, double-clicked or cut off, and some of each come again with a
changed cart.  Places in the timetable are order numbers, not seconds: the
clients work it off as fast as they can, and sends in one place meet.
"""

import random
from typing import NamedTuple

ITEMS = ("tea", "crème brûlée", "ramen 拉麺", "2\" nails", "O'Neill's stout", "☕ beans")

TROUBLES = ("retried", "double-clicked", "cut off")

CUT = "cut off at a random moment"
CUT_AT_COMMIT = "cut off with the COMMIT under way"
CUT_AFTER_COMMIT = "cut off before the answer got through"


class Order(NamedTuple):
    customer: str
    key: str
    carts: tuple        # as the client meant it, and the changed one


class Send(NamedTuple):
    place: float        # in the timetable
    order: int
    cart: int           # which of the order's two
    wait: str           # how long the claim may wait for another one in flight
    cuts: tuple         # (what, seconds) for the first tries; later ones are let through


class Plan(NamedTuple):
    orders: list
    sends: list
    troubles: dict      # how many orders met each
    kills: list         # after how many sends a backend is terminated
    crashes: list       # after how many sends the whole server is made to crash


def draw(seed, count):
    rng = random.Random(seed)
    orders = [draw_order(rng, number) for number in range(count)]
    sends, troubles = [], dict.fromkeys(TROUBLES, 0)
    for number in range(count):
        trouble = rng.choice(TROUBLES)
        troubles[trouble] += 1
        sends += sends_of(rng, number, trouble)
    sends.sort()
    total = len(sends)
    kills = sorted(rng.randrange(total) for _ in range(count // 8))
    return Plan(orders, sends, troubles, kills, [total // 2 + rng.randrange(total // 20 + 1)])


def draw_order(rng, number):
    item, qty = rng.choice(ITEMS), rng.randint(1, 9)
    return Order(customer=f"customer-{rng.randint(1, 60)}",
                 key=f"{number}-{rng.getrandbits(64):016x}",
                 carts=(dict(item=item, qty=qty), dict(item=item, qty=qty + rng.randint(1, 90))))


def sends_of(rng, number, trouble):
    def send(place, cart=0, cuts=()):
        return Send(place, number, cart, rng.choice(("0", "0.5 s")), cuts)

    first = number + rng.random()
    yield send(first, cuts=draw_cuts(rng) if trouble == "cut off" else ())
    if trouble == "double-clicked":
        for _ in range(rng.randint(1, 3)):
            yield send(first + rng.random() / 100)
    if trouble == "retried" or rng.random() < 0.3:
        for _ in range(rng.randint(1, 3)):
            yield send(first + rng.uniform(1, 150))
    if rng.random() < 0.15:
        yield send(first + rng.uniform(10, 300), cart=1)
    if rng.random() < 0.05:
        yield send(first + rng.random() / 100, cart=1)


def draw_cuts(rng):
    """What a cut can do to a client, each as likely; one time in four it comes twice."""
    def cut():
        return rng.choice(((CUT, rng.uniform(0, 0.025)), (CUT, rng.uniform(0, 0.025)),
                           (CUT_AT_COMMIT, rng.uniform(0, 0.002)), (CUT_AFTER_COMMIT, 0)))

    return tuple(cut() for _ in range(1 if rng.random() < 3 / 4 else 2))
