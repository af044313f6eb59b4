#!/usr/bin/env python3
"""Reference implementation of idem_fingerprint(), version 1 of the form.

Reads one JSON document a line and prints the SHA-256 of each one's canonical
form in hex; with --form, the canonical form itself.
"""
import hashlib
import json
import struct
import sys
from decimal import Decimal


def text(string):
    if "\0" in string:
        raise ValueError("jsonb has no \\u0000")
    utf8 = string.encode("utf-8")
    return struct.pack(">I", len(utf8)) + utf8


def number(value):
    """The exact value in base 10000: 12.5 is 0012 5000, weight 0."""
    sign, digits, exponent = value.as_tuple()
    decimal = "".join(map(str, digits)).lstrip("0")
    stripped = decimal.rstrip("0")
    if not stripped:
        return struct.pack(">HhH", 0, 0, 0)
    exponent += len(decimal) - len(stripped)
    decimal = stripped + "0" * (exponent % 4)
    exponent -= exponent % 4
    decimal = "0" * (-len(decimal) % 4) + decimal
    groups = [int(decimal[i:i + 4]) for i in range(0, len(decimal), 4)]
    weight = len(groups) - 1 + exponent // 4
    return struct.pack(">HhH%dH" % len(groups), len(groups), weight,
                       0x4000 if sign else 0, *groups)


def canonical(value):
    if value is None:
        return b"n"
    if isinstance(value, bool):
        return b"t" if value else b"f"
    if isinstance(value, str):
        return b'"' + text(value)
    if isinstance(value, Decimal):
        return b"#" + number(value)
    if isinstance(value, list):
        return (b"[" + struct.pack(">I", len(value))
                + b"".join(map(canonical, value)))
    pairs = [(text(key), canonical(value[key])) for key in value]
    # The length stands first and is big-endian: shorter keys come first.
    return b"{" + struct.pack(">I", len(pairs)) + b"".join(
        key + item for key, item in sorted(pairs))


def no_constant(name):
    raise ValueError("jsonb has no " + name)


def form(line):
    return b"IDEM\x01" + canonical(json.loads(
        line, parse_int=Decimal, parse_float=Decimal,
        parse_constant=no_constant))


def main():
    as_form = sys.argv[1:] == ["--form"]
    for line in sys.stdin.buffer:
        result = form(line.decode("utf-8"))
        print(result.hex() if as_form else hashlib.sha256(result).hexdigest())


if __name__ == "__main__":
    main()
