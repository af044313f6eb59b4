"""Clients in processes of their own, and connections that fail."""

import multiprocessing
import os
import socket
import time
import traceback

import psycopg

PATIENCE = 300          # seconds until a client that does not come back is a failure


class ClientFailed(Exception):
    """A client process ended with an exception; the text is its traceback."""


def _run(function, args, number, results):
    try:
        results.put((number, function(*args), None))
    except Exception:
        results.put((number, None, traceback.format_exc()))


def in_parallel(jobs, patience=PATIENCE):
    """Run (function, args...) tuples, each in a process; their results in order.

    If one fails, ClientFailed; the others end with this process.
    """
    queue = multiprocessing.Queue()
    processes = [multiprocessing.Process(target=_run, args=(function, args, number, queue),
                                         daemon=True)
                 for number, (function, *args) in enumerate(jobs)]
    for process in processes:
        process.start()
    results = [None] * len(jobs)
    for _ in jobs:
        number, result, failure = queue.get(timeout=max(patience, PATIENCE))
        if failure:
            raise ClientFailed(failure)
        results[number] = result
    for process in processes:
        process.join()
    return results


def connect(**options):
    """A session in autocommit.  Being terminated while it logs in is not its end."""
    patience = time.monotonic() + PATIENCE
    while True:
        try:
            return psycopg.connect("", autocommit=True, **options)
        except psycopg.OperationalError:
            if time.monotonic() > patience:
                raise
            time.sleep(0.01)


def wire_of(connection):
    """The socket under a connection, to be shut down without the driver's knowing."""
    return socket.socket(fileno=os.dup(connection.fileno()))


def sever(wire):
    try:
        wire.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass            # the server was faster
    wire.close()
