"""Is a verdict ever wrong? A zoo of modules of which the truth is known, through six compilers, in real studies.

``python benchmarks/zoo.py [--home DIR] [--compilers NAME,...] [--specimens NAME,...] [--chunk 16] [--anew]``, from the
root of the repository.

Each engine is loaded in another process and run on inputs that reveal it: the other side of a branch, beyond a
threshold. *False ok*: the verdict says that the engine computes the model's function, and it does not, or nothing could.
*Refused*: the engine is right, and the verdict says that it is not. *Odd*: neither, but not the verdict that was to be
expected. Studies are resumed, so that the whole may be run in pieces. ``torch-compile``, whose engines take longest, gets
the largest batch size only. Exit code 1: a false ok, or more than two refused.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # the zoo lies beside the tests, whose suite runs a part of it

from support import records  # noqa: E402
from support.records import Result  # noqa: E402
from support.resumed import measured  # noqa: E402

from mlflow_ngraph.execute import replay  # noqa: E402
from mlflow_ngraph.study import Study  # noqa: E402
from tests.support.zoo.catalogue import specimens  # noqa: E402
from tests.support.zoo.judge import Cell, judged, study  # noqa: E402
from tests.support.zoo.specimen import KINDS, Specimen  # noqa: E402

SLOW = ("torch-compile",)
MAY_BE_REFUSED = 2


def main() -> int:
    """Run what is missing, and print what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path)
    parser.add_argument("--compilers", default=",".join(KINDS))
    parser.add_argument("--specimens", default="", help="names, or texts that are in them")
    parser.add_argument("--chunk", type=int, default=16, help="workloads of a study")
    parser.add_argument("--anew", action="store_true", help="measure what was measured before")
    records.add_option(parser)
    options = parser.parse_args()
    texts = options.specimens.split(",")
    chosen = [one for one in specimens().values() if any(text in one.name for text in texts)]
    cells: list[Cell] = []
    for number, (compilers, batch_sizes, members) in enumerate(
        _parts(chosen, options.compilers.split(","), options.chunk)
    ):
        given = study(members, compilers, batch_sizes, f"zoo-{number}")
        cells += _measured(given, compilers, options.home, anew=options.anew)
        print(f"{given.name}: {Counter(cell.judgement for cell in cells)}", file=sys.stderr, flush=True)
    return _report(cells, options)


def _parts(
    chosen: Sequence[Specimen], compilers: Sequence[str], chunk: int
) -> Iterator[tuple[list[str], tuple[int, ...], list[Specimen]]]:
    """Studies of equal batch sizes, those of slow compilers last."""
    for slow in (False, True):
        some = [name for name in compilers if (name in SLOW) == slow]
        of_size: dict[tuple[int, ...], list[Specimen]] = defaultdict(list)
        for one in chosen if some else ():
            of_size[one.batch_sizes[-1:] if slow else one.batch_sizes].append(one)
        for batch_sizes, members in of_size.items():
            for start in range(0, len(members), chunk):
                yield some, batch_sizes, members[start : start + chunk]


def _measured(given: Study, compilers: Sequence[str], home: Path | None, *, anew: bool) -> list[Cell]:
    """The cells of a study, which is run unless it came to its end before."""
    directory = measured(given, home, anew=anew)
    return judged(replay.load(directory), directory, compilers)


def _report(cells: Sequence[Cell], options: argparse.Namespace) -> int:
    compilers = options.compilers.split(",")
    names = list(dict.fromkeys(cell.specimen for cell in cells))
    print("| module | truth |", " | ".join(compilers), "|")
    print("|:--|:--|" + ":--|" * len(compilers))
    for name in names:
        shown = [_shown([cell for cell in cells if (cell.specimen, cell.compiler) == (name, one)]) for one in compilers]
        print(f"| {name} | {specimens()[name].truth} |", " | ".join(shown), "|")
    count = Counter(cell.judgement for cell in cells)
    for judgement in ("false ok", "refused", "odd"):
        print(f"\n{judgement}: {count[judgement]} of {len(cells)} cells")
        print(*(f"  {cell}" for cell in cells if cell.judgement == judgement), sep="\n")
    of = f"of {len(cells)}"
    records.keep(
        options,
        "zoo",
        records.at_most("wrong engines called ok", count["false ok"], 0, of),
        records.at_most("right engines refused", count["refused"], MAY_BE_REFUSED, of),
        Result(name="not the expected verdict", value=count["odd"], unit=of),
    )
    return int(count["false ok"] > 0 or count["refused"] > MAY_BE_REFUSED)


def _shown(cells: Sequence[Cell]) -> str:
    """Verdicts over batch sizes, with a mark where they are wrong."""
    marks = {"right": "", "odd": " ?", "refused": " (refused)", "false ok": " (FALSE)"}
    return ", ".join(dict.fromkeys(f"{cell.verdict}{marks[cell.judgement]}" for cell in cells))


if __name__ == "__main__":
    sys.exit(main())
