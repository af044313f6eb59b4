"""Medians, spreads and ratios."""

import statistics


def median(values):
    return statistics.median(values)


def summary(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values),
            "n": len(values)}


def paired(ours, others):
    """Ratios of runs that followed each other, so that a slow minute hits both."""
    return summary([a / b for a, b in zip(ours, others)])


def quantile(values, q):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]
