"""The clients of a round, as the driver sees them: processes that may be killed."""

import multiprocessing
import os
import signal
import sys
import time

from . import client
from .board import Board
from .server import Stuck, until
from .session import KINDS

CLIENTS = len(KINDS)

_forking = multiprocessing.get_context("fork")


RELIEF = 3              # seconds between two


class Crew:
    """relief: called now and then while something takes long, as clients may wait for what
    the driver holds.
    """

    def __init__(self, world):
        self.relief = None
        self.world = world
        self.board = Board(CLIENTS)
        self.incarnations = [0] * CLIENTS
        self.processes = [None] * CLIENTS
        for slot in range(CLIENTS):
            self._start(slot)

    def _start(self, slot):
        self.incarnations[slot] += 1
        self.processes[slot] = _forking.Process(
            target=client.live, args=(self.world, self.board, slot, self.incarnations[slot]),
            daemon=True)
        self.processes[slot].start()

    def mind(self):
        """Put another client in the place of each that was killed."""
        for slot, process in enumerate(self.processes):
            if process.exitcode == -signal.SIGKILL and not self.board.leaving.value:
                self._start(slot)
            elif process.exitcode not in (None, 0, -signal.SIGKILL):
                raise Stuck(f"client {slot} ended with status {process.exitcode}")

    def until(self, condition, what):
        relief_at = time.monotonic() + RELIEF

        def minded():
            nonlocal relief_at
            self.mind()
            if self.relief is not None and time.monotonic() > relief_at:
                self.relief()
                relief_at = time.monotonic() + RELIEF
            return condition()
        return self.until_or_tell(minded, what)

    def advance(self, operations):
        """Let them do so many more."""
        goal = self.board.progress() + operations
        self.until(lambda: self.board.progress() >= goal, f"{operations} more operations")

    def advance_acknowledged(self, settled, claimed=0):
        """Let them do so many more that are acknowledged."""
        settled += sum(self.board.settled)
        claimed += sum(self.board.claimed)
        self.until(lambda: sum(self.board.settled) >= settled and
                   sum(self.board.claimed) >= claimed, "acknowledgements")

    def order(self, slot, order):
        """Have a client do something to itself, and wait until it is done."""
        self.until(self.board.give(slot, order), f"client {slot} does {order.name}")

    def kill(self, slot):
        """A client process."""
        process = self.processes[slot]
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        self.mind()

    def halt(self):
        """Kill them all."""
        for process in self.processes:
            process.kill()
            process.join()

    def dismiss(self):
        """Let each finish what it does.  Needs a server that answers."""
        self.board.leaving.value = 1
        self.until(lambda: not any(process.is_alive() for process in self.processes),
                   "the clients leave")

    def until_or_tell(self, condition, what):
        """If it does not happen, the clients show where they are."""
        try:
            return until(condition, what)
        except Stuck:
            print(self.board, file=sys.stderr)
            for process in self.processes:
                if process.is_alive():
                    os.kill(process.pid, signal.SIGUSR1)
            time.sleep(1)
            raise
