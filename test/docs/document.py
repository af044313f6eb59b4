"""The fenced blocks of a Markdown document, and what its links point to.

A block is run or shown, as its language says.  What an example prints stands
in a text block right behind it; one without such a block must print nothing.
A comment on a line of its own before a block says what the language does not:

    <!-- check: session b -->       the SQL runs in a second session, named b
    <!-- check: needs django -->    a program of its own, for the module (in Java
                                    the class) named; Ruby, Node and Java always
                                    are programs of their own (see programs.py)
    <!-- check: run by PATH -->     shown only: PATH is what runs it
    <!-- check: any output -->      what it prints is not compared; errors count
"""
import re
from dataclasses import dataclass, field
from pathlib import Path

RUN = ("sql", "python", "ruby", "javascript", "java")
SHOWN = ("", "sh", "text", "ini", "http", "json", "mermaid", "hex", "sha256")

FENCE = re.compile(r"^```(\w*)\s*$")
DIRECTIVE = re.compile(r"^<!-- check: (session|needs|run by|any) (\S+) -->$")
HEADING = re.compile(r"^#{1,6} +(.*)$")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


class Malformed(Exception):
    """The document is not written as the checks need it."""


@dataclass
class Block:
    language: str
    line: int                   # of the opening fence, from 1
    text: str = ""
    directives: dict = field(default_factory=dict)
    output: "Block | None" = None


class Document:
    def __init__(self, path, root):
        self.path = Path(path)
        self.name = str(self.path.relative_to(root))
        self.lines = self.path.read_text(encoding="utf-8").split("\n")
        self.prose = []
        self.blocks = list(self._read())

    def _read(self):
        """Yield the blocks, each output attached to the example before it."""
        directives, example, at = {}, None, 0
        while at < len(self.lines):
            line = self.lines[at]
            fence = FENCE.match(line)
            if fence:
                block = self._block(fence[1], at, directives)
                at = block.line + block.text.count("\n") + 1
                directives = {}
                if block.language == "text" and example:
                    example.output, example = block, None
                else:
                    example = block if block.language in RUN else None
                    yield block
                continue
            if line.startswith("<!-- check:"):
                directives.update(self._directive(line, at))
            elif line.strip():
                example = None
                self.prose.append((at + 1, line))
            at += 1

    def _block(self, language, at, directives):
        try:
            end = self.lines.index("```", at + 1)
        except ValueError:
            raise Malformed(f"{self.name}:{at + 1}: block without end") from None
        text = "".join(line + "\n" for line in self.lines[at + 1:end])
        return Block(language, at + 1, text, dict(directives))

    def _directive(self, line, at):
        found = DIRECTIVE.match(line)
        if not found:
            raise Malformed(f"{self.name}:{at + 1}: cannot read {line}")
        return {found[1]: found[2]}

    def anchors(self):
        """What GitHub calls the headings."""
        names = set()
        for _, line in self.prose:
            heading = HEADING.match(line)
            if heading:
                text = re.sub(r"[^\w\- ]", "", heading[1].lower())
                names.add(text.replace(" ", "-"))
        return names

    def links(self):
        for number, line in self.prose:
            for target in LINK.findall(line):
                yield number, target

    def replace_outputs(self, outputs):
        """Write what each example printed under it.  outputs: (block, text)."""
        for block, text in sorted(outputs, key=lambda o: -o[0].line):
            end = block.line + block.text.count("\n") + 1
            printed = [line.rstrip() for line in text.rstrip("\n").split("\n")]
            shown = ["```text", *printed, "```"] if text else []
            if block.output:
                first = block.output.line - 1
                last = first + block.output.text.count("\n") + 2
                self.lines[first:last] = shown
            elif shown:
                self.lines[end:end] = ["", *shown]
        self.path.write_text("\n".join(self.lines), encoding="utf-8")
