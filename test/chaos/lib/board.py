"""What the driver and its clients tell each other while both run.

Shared memory without locks, because any client may be killed at any moment
and must not take a lock with it.  Each cell has one writer at a time: the
driver writes an order where there is none, the client takes it away.
"""

import enum
from multiprocessing.sharedctypes import RawArray, RawValue


class Order(enum.IntEnum):
    """What a client is to do at its next opportunity, to itself or to its server process."""
    NONE = 0
    CUT_BEFORE_COMMIT = 1       # the socket, everything but COMMIT being sent
    TEAR_COMMIT = 2             # in the middle of the message
    CUT_AFTER_COMMIT = 3        # COMMIT sent, no answer read
    DIE_AT_COMMIT = 4           # COMMIT sent, then the client kills itself
    CUT_AFTER_CLAIM = 5         # a leased claim sent, no answer read
    PREPARE = 6                 # PREPARE TRANSACTION, and go away
    KILL_BACKEND_AT_CLAIM = 7
    KILL_BACKEND_AT_EFFECT = 8
    KILL_BACKEND_AT_FINISH = 9
    KILL_BACKEND_AT_COMMIT = 10


class Board:
    def __init__(self, clients):
        self.clients = clients
        self.leaving = RawValue("b", 0)             # the driver: finish what you do and end
        self.order = RawArray("i", clients)
        self.obeyed = RawArray("L", clients)
        self.made = RawArray("L", clients)          # keys that each brought into play
        self.done = RawArray("L", clients)          # operations that ended, well or not
        self.settled = RawArray("L", clients)       # acknowledged
        self.claimed = RawArray("L", clients)       # leased claims that were acknowledged
        self.released = RawArray("L", clients)
        self.local = RawArray("L", clients)         # committed without the standby
        self.cancelled = RawArray("L", clients)     # told so
        self.full = RawArray("L", clients)          # refused for want of space

    def progress(self):
        return sum(self.done)

    def take(self, slot, among):
        """The order for a client, if it is one of these; it is gone then."""
        order = self.order[slot]
        if order not in among:
            return Order.NONE
        self.obeyed[slot] += 1
        self.order[slot] = Order.NONE
        return Order(order)
