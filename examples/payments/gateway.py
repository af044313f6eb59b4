"""The shop's side of the wire to the payment provider.

It has one rule: only an answer in which the provider itself states what
became of the order is a verdict.  A time-out, a closed connection and a 5xx
say nothing, whatever probably happened, and come back as `unknown`.
"""

import hashlib
import hmac
import json
import time
from http.client import HTTPConnection, HTTPException
from typing import NamedTuple

SIGNATURE_TOLERANCE = 300  # seconds; older callbacks are refused as replays


class Verdict(NamedTuple):
    """What the provider says of one order.

    charged, declined, expired   final: it will never be anything else
    absent                       no such order yet: a charge may be on its way
    unknown                      no answer, or none that says anything
    not_sent                     proof that this call never left
    """

    status: str
    charge_id: str | None = None
    reason: str | None = None

    @property
    def final(self):
        return self.status in ("charged", "declined", "expired")


class NotSent(Exception):
    """No connection was made, so not one byte has left."""


class Gateway:
    def __init__(self, port, timeout):
        self.port, self.timeout = port, timeout

    def charge(self, order_no, terms):
        """Charge once per order number, however often it is called."""
        return self._ask("POST", "/charges", {"order_no": order_no, **terms})

    def query(self, order_no):
        return self._ask("GET", f"/orders/{order_no}")

    def expire(self, order_no):
        """Close an order that was never charged; a later charge is refused."""
        return self._ask("POST", f"/orders/{order_no}/expire", {})

    def charges(self):
        """The provider's book, for the report: every charge it made."""
        status, body = self._call("GET", "/charges")
        if status != 200:
            raise HTTPException(f"the provider's book: status {status}")
        return body

    def _ask(self, method, path, body=None):
        try:
            status, answer = self._call(method, path, body)
        except NotSent:
            return Verdict("not_sent")
        except (OSError, HTTPException, ValueError):
            return Verdict("unknown")
        if status >= 500 or not isinstance(answer, dict):
            return Verdict("unknown")
        told = answer.get("status")
        if told not in ("charged", "declined", "expired", "absent"):
            return Verdict("unknown")
        return Verdict(told, answer.get("charge_id"), answer.get("reason"))

    def _call(self, method, path, body=None):
        wire = HTTPConnection("127.0.0.1", self.port, timeout=self.timeout)
        try:
            try:
                wire.connect()
            except OSError as error:
                raise NotSent from error
            wire.request(method, path, json.dumps(body) if body is not None else None)
            response = wire.getresponse()
            return response.status, json.loads(response.read())
        finally:
            wire.close()


def authentic(secret, headers, body):
    """Whether a callback was signed by the provider, and lately."""
    timestamp = headers.get("Provider-Timestamp", "")
    signature = headers.get("Provider-Signature", "")
    if not (timestamp.isascii() and timestamp.isdigit() and signature.isascii()):
        return False
    if abs(time.time() - int(timestamp)) > SIGNATURE_TOLERANCE:
        return False
    expected = hmac.new(secret, timestamp.encode() + b"." + body, hashlib.sha256)
    return hmac.compare_digest(expected.hexdigest(), signature)
