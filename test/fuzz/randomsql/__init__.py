"""Random SQL calls of the extension's functions, and what they may end with."""
