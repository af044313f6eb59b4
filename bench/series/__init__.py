"""The series of the benchmark, one per file; see bench/README.md."""
