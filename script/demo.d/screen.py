"""What the demo prints: headings, tables and a progress line.

Colour and the moving progress line are for a terminal; a log gets the same
text, plain.
"""

import os
import sys

TTY = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
COLOUR = TTY and "NO_COLOR" not in os.environ


def paint(text, code):
    return f"\x1b[{code}m{text}\x1b[0m" if COLOUR else text


def bold(text):
    return paint(text, 1)


def dim(text):
    return paint(text, 2)


def green(text):
    return paint(text, 32)


def red(text):
    return paint(text, "1;31")


def heading(text):
    print(f"\n{bold(text)}\n", flush=True)


def say(text=""):
    print(f"  {text}" if text else "", flush=True)


def number(value):
    return f"{value:,}"


def table(rows, title=None):
    """Rows of (text, number); a dotted leader joins them."""
    if title:
        say(bold(title))
    for text, value in rows:
        value = number(value) if isinstance(value, int) else str(value)
        say(f"  {text} {dim('.' * max(2, 62 - len(text) - len(value)))} {value}")
    say()


def grid(header, rows):
    """A small table with columns."""
    cells = [[str(cell) for cell in row] for row in [header, *rows]]
    widths = [max(map(len, column)) for column in zip(*cells)]
    for at, row in enumerate(cells):
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip()
        say("  " + (dim(line) if at == 0 else line))
    say()


def progress(text):
    """Overwrite the progress line; an empty text takes it away."""
    if TTY:
        print(f"\r\x1b[K  {text}", end="" if text else "\r", flush=True)
