"""Do all verbs say the same of the same results?

Draws random tables of results: quiet and not, of two to twenty rounds, with ties, holes, races, sessions that share no rounds, and
cells that went wrong. Asks recommend, compare, findings, pull, promote and the page about each, by their own functions, and compares
what they call the best, tied and undecided, and every interval. Exit code 1: two of them disagreed.

    python benchmarks/agreement.py                # 1,000 tables
    python benchmarks/agreement.py --tables 100 --first 5000
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from sys import path

import numpy as np
from support import records

path.insert(0, str(Path(__file__).parents[1]))
from tests.support.random_results import OBJECTIVES, disagreements, table


def main() -> int:
    """Draw, ask, and count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="seed of the first table")
    records.add_option(parser)
    options = parser.parse_args()
    started, cells, found = time.perf_counter(), 0, 0
    for number in range(options.first, options.first + options.tables):
        frame = table(np.random.default_rng(number))
        cells += len(frame)
        # Each table is asked about by one objective, all of them in turns.
        objective = OBJECTIVES[number % len(OBJECTIVES)]
        for text in disagreements(frame, objective):
            found += 1
            print(f"table {number}, {objective}: {text}", flush=True)
        if (number - options.first) % 50 == 49:
            print(f"{number - options.first + 1} tables, {found} disagreements", flush=True)
    print(f"{options.tables} tables, {cells} cells: {found} disagreements, in {time.perf_counter() - started:.0f} s")
    records.keep(options, "agreement", records.at_most("disagreements", found, 0, f"in {options.tables} tables"))
    return int(found > 0)


if __name__ == "__main__":
    raise SystemExit(main())
