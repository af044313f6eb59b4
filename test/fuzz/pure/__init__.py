"""Compiling the pure parts with clang's sanitizers, and running libFuzzer."""

import os
import re
import subprocess
import tempfile

from lib import tap

TREE = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
SRC = os.path.join(TREE, "src")
HERE = os.path.dirname(os.path.abspath(__file__))
FLAGS = ["-g", "-O1", "-Wall", "-Wextra", "-Werror", "-fno-omit-frame-pointer",
         "-fno-sanitize-recover=all", f"-I{SRC}"]
SANITIZERS = "address,undefined"

# Lines of a failed run that say what is wrong: ours, and the sanitizers'.
TELLING = r"^(wrong|now=|record:|claim:|finish:|renewal:)|ERROR|SUMMARY|runtime error"


class Workshop:
    """A directory to compile and to fuzz in, gone at the end."""

    def __enter__(self):
        self._directory = tempfile.TemporaryDirectory(prefix="fuzz.")
        self.path = self._directory.name
        return self

    def __exit__(self, *exception):
        self._directory.cleanup()

    def compile(self, name, sources, *flags):
        """Path of what was made, or None after a failed assertion."""
        made = os.path.join(self.path, name)
        run = subprocess.run(["clang", *FLAGS, *flags, "-o", made, *sources],
                             capture_output=True, text=True, check=False)
        if run.returncode != 0:
            tap.ok(False, f"{name} compiles", run.stderr.splitlines())
            return None
        return made

    def arguments(self, runs, seeds, longest):
        """libFuzzer's, for a run of so many inputs, from the seeds in the tree.

        What it finds is lost unless FUZZ_CORPUS names a directory for it.
        """
        corpus = os.environ.get("FUZZ_CORPUS") or os.path.join(self.path, "corpus")
        os.makedirs(corpus, exist_ok=True)
        return [f"-runs={runs}", f"-seed={tap.SEED or 1}", f"-max_len={longest}", "-timeout=60",
                "-rss_limit_mb=0", "-detect_leaks=0", "-verbosity=1", "-print_final_stats=1",
                f"-artifact_prefix={self.path}/", corpus, seeds]


def input_of(variable="FUZZ_INPUT"):
    """One input to run instead, in hex, as a failed run prints it."""
    return bytes.fromhex(os.environ.get(variable, ""))


def verdict(name, wanted, output, status, path):
    """One assertion about a run of libFuzzer."""
    done = re.search(r"stat::number_of_executed_units: +(\d+)", output)
    count = int(done.group(1)) if done else 0
    details = [line for line in output.splitlines() if re.search(TELLING, line)][:20]
    for crash in os.listdir(path):
        if re.match("(crash|leak|timeout|oom)-", crash):
            with open(os.path.join(path, crash), "rb") as file:
                details.insert(0, f"to see it again: FUZZ_INPUT={file.read().hex()}")
    tap.ok(status == 0 and count >= wanted, f"{name}: {count} inputs",
           details or output.splitlines()[-12:])
