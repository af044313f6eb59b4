"""What a client is told, in the words of draft-ietf-httpapi-idempotency-key-header:
its key read from the header, replays, and problem documents (RFC 9457).
"""

import json
import re

from flask import Response
from werkzeug.datastructures import Headers

PROBLEMS = "https://api.example.com/problems/"  # the base of your documentation of them

KINDS = {  # status, title, and Retry-After only where waiting is known to help
    "idempotency-key-missing": (400, "This operation requires an Idempotency-Key"),
    "idempotency-key-invalid": (400, "This Idempotency-Key cannot be used"),
    "not-json": (400, "The body is not JSON that can be stored"),
    "not-authenticated": (401, "Keys belong to a user: say who you are"),
    "request-in-flight": (409, "A request with this key is being processed", 1),
    "outcome-unknown": (409, "Whether this took effect is being found out; do not use a new key"),
    "request-too-large": (413, "The request is too large"),
    "idempotency-key-reused": (422, "This key was used for a different request"),
    "unavailable": (503, "Send the same again, with the same key", 1),
    "not-done": (503, "Nothing was done; send the same again, with the same key", 1),
}


# A string of RFC 9651, with parameters that we ignore; or the bare value that many send.
TEXT = r'"((?:[ !#-\[\]-~]|\\["\\])*)"'
QUOTED = re.compile(rf'{TEXT}(?:; *[a-z*][a-z0-9_.*-]*(?:=%?{TEXT}|=[^\s;",]+)?)*')
BARE = re.compile(r"[!#-+\--:<-\[\]-~]+")


class Refused(Exception):
    """Answer this; nothing is stored, and what was begun rolls back."""

    def __init__(self, response):
        self.response = response


class NotDone(Refused):
    """Nothing was sent or done, for certain: the same key may run again."""

    def __init__(self, response=None):
        super().__init__(response or problem("not-done"))


def key_of(header):
    if header is None:
        raise Refused(problem("idempotency-key-missing"))
    if quoted := QUOTED.fullmatch(header):
        return re.sub(r"\\(.)", r"\1", quoted[1])
    if not BARE.fullmatch(header):  # two headers, joined by a comma, are not one key
        raise Refused(problem("idempotency-key-invalid"))
    return header


def answer_for(record):
    """The answer to a request that must not run."""
    match record.outcome:
        case "replayed":
            body = record.response_bytes or record.response_body
            code = record.response_code or (200 if record.state == "succeeded" else 422)
            response = Response(body, code)
            response.headers = Headers(record.response_headers or {})
            response.headers["Idempotency-Replayed"] = "true"
            return response
        case "in_progress":
            return problem("request-in-flight")
        case "unknown":
            return problem("outcome-unknown")
        case "mismatch":
            return problem("idempotency-key-reused",
                           new_key_is_safe=record.state not in ("processing", "unknown"))
    return problem("not-done")  # by a lookup: released, or gone


def problem(kind, **more):
    status, title, *retry_after = KINDS[kind]
    document = {"type": PROBLEMS + kind, "title": title, "status": status} | more
    response = Response(json.dumps(document), document["status"],
                        content_type="application/problem+json")
    if retry_after:
        response.headers["Retry-After"] = str(retry_after[0])
    if status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response
