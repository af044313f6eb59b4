"""What the driver and its clients tell each other while both run.

Shared memory without locks, because any client may be killed at any moment
and must not take a lock with it.  Each cell has one writer.  Orders are
numbered, and a client that has obeyed one says its number: so an order stands
until it is obeyed, if need be by the client that takes the place of one that
was killed meanwhile, and is obeyed once.
"""

import enum
from multiprocessing.sharedctypes import RawArray, RawValue


class Order(enum.IntEnum):
    """What a client is to do at its next opportunity, to itself or to its server process."""
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


NUMBER = 16                     # an order is kept as its number times this, and what it is


class Board:
    def __init__(self, clients):
        self.clients = clients
        self.leaving = RawValue("b", 0)             # the driver: finish what you do and end
        self.order = RawArray("L", clients)         # the driver: the last one given
        self.obeyed = RawArray("L", clients)        # the same, once it is done
        self.killed = RawArray("L", clients)        # the server process that each killed last
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

    def __str__(self):
        return "\n".join(f"client {slot}: order {self.standing(slot, tuple(Order))!r}, "
                         f"{self.done[slot]} operations" for slot in range(self.clients))

    def give(self, slot, order):
        """A function that says whether it has been obeyed."""
        given = (self.order[slot] // NUMBER + 1) * NUMBER + order
        self.order[slot] = given
        return lambda: self.obeyed[slot] == given

    def standing(self, slot, among):
        """The order that a client is to obey now, if it is one of these."""
        given = self.order[slot]
        if given == self.obeyed[slot] or given % NUMBER not in among:
            return None
        return Order(given % NUMBER)

    def obey(self, slot):
        """To be called once it is done, or cannot fail any more."""
        self.obeyed[slot] = self.order[slot]
