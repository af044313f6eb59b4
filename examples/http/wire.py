"""HTTP on a bare socket: a request can be sent in pieces, repeated byte for
byte, given headers that a client library would refuse, and broken off.
"""

import json
import socket
import struct
import time
from contextlib import contextmanager
from http.client import HTTPException, HTTPResponse
from typing import NamedTuple


class Reply(NamedTuple):
    status: int
    headers: dict
    body: bytes

    @property
    def replayed(self):
        return self.headers.get("idempotency-replayed") == "true"

    @property
    def problem(self):
        """Kind of the problem document, or None if it is not one."""
        if self.headers.get("content-type") != "application/problem+json":
            return None
        document = json.loads(self.body)
        return document["status"] == self.status and document["type"].rsplit("/", 1)[1]

    @property
    def verdict(self):
        return self.status, self.problem

    @property
    def essence(self):
        """What a replay must give back."""
        return (self.status, self.headers.get("content-type"), self.headers.get("location"),
                self.body)


class Call:
    """One request on a connection of its own."""

    def __init__(self, port, method, target, body=b"", headers=()):
        lines = [f"{method} {target} HTTP/1.1".encode(), b"Host: shop.example",
                 b"Connection: close", b"Content-Length: %d" % len(body)]
        lines += [name.encode() + b": " + (value if isinstance(value, bytes) else value.encode())
                  for name, value in headers]
        self.message = b"\r\n".join(lines) + b"\r\n\r\n" + body
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=300)

    def send(self, start=0, end=None):
        self.sock.sendall(self.message[start:end])
        return self

    def answer(self):
        """The Reply, or None if none came."""
        try:
            response = HTTPResponse(self.sock)
            response.begin()
            headers = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, headers, response.read())
        except (OSError, HTTPException):
            return None
        finally:
            self.sock.close()

    def drop(self):
        """Break off, so that the other side gets a reset."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()


class Client:
    """Somebody with a token who sends requests to a server."""

    def __init__(self, port, token):
        self.port, self.token = port, token

    def call(self, target, key, body, kind="application/json", method="POST", more=()):
        headers = list(more)
        if self.token:
            headers.append(("Authorization", f"Bearer {self.token}"))
        if key is not None:
            headers.append(("Idempotency-Key", key))
        if not isinstance(body, bytes):
            body = json.dumps(body).encode()
        headers.append(("Content-Type", kind))
        return Call(self.port, method, target, body, headers)

    def send(self, *arguments, **options):
        return self.call(*arguments, **options).send().answer()

    def insist(self, target, key, body, until):
        """Send it again, as a client would, until the answer is one of until."""
        while (reply := self.send(target, key, body)).status not in until:
            time.sleep(0.02)
        return reply


@contextmanager
def broken_off(call):
    """Have the request sent, and its connection reset when the block ends."""
    call.send()
    try:
        yield
    finally:
        call.drop()
