"""Are engines found that are wrong by a little? Engines damaged in seven ways, of ten models, in real studies.

``python benchmarks/broken_engines.py [--home DIR] [--models NAME,...] [--damages NAME,...] [--places 3] [--anew]``, from
the root of the repository.

A damage that the verification must find has the verdict ``parity_failed``. A model that has nothing to damage in a way,
such as no activation to clip, is ``unsupported`` and not counted. One number of one weight being 1 % off is reported by
itself: of millions of weights most move the outputs by less than rounding does. Each is measured at ``--places`` places
that chance chooses, the other damages at two. Exit code 1: one of those was not found.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support import records
from support.compilers import registered
from support.records import Result
from support.resumed import BRIEFLY, measured

from mlflow_ngraph.execute import journal, replay
from mlflow_ngraph.study import Study, parse
from mlflow_ngraph_testing.models import INPUTS

TOKENS = [
    {"name": "tokens", "shape": ["batch", 32], "dtype": "int64", "high": 8192},
    {"name": "mask", "shape": ["batch", 32], "dtype": "int64"},
    {"name": "types", "shape": ["batch", 32], "dtype": "int64"},
]
CONTRACT = "torch:mlflow_ngraph_testing.models"
ZOO = "torch:tests.support.zoo.numbers"
SMALL: dict[str, dict[str, Any]] = {
    "cnn": {"ref": f"{CONTRACT}:cnn", "options": {"inputs": INPUTS["cnn"]}},
    "parallel": {"ref": f"{CONTRACT}:parallel", "options": {"inputs": INPUTS["parallel"]}},
    "perceptron": {"ref": f"{CONTRACT}:perceptron", "options": {"inputs": INPUTS["perceptron"]}},
    "encoder": {
        "ref": "torch:mlflow_ngraph.workloads.transformer:encoder",
        "options": {"inputs": TOKENS, "kwargs": {"layers": 2, "width": 64}},
    },
    "chaotic": {"ref": f"{ZOO}:Chaotic", "options": {"inputs": [{"shape": ["batch", 8]}]}},
    "detector": {"ref": f"{ZOO}:Detector", "options": {"inputs": [{"shape": ["batch", 8]}]}},
    "conv-block": {"ref": "block:conv?width=32&depth=3&image_size=28"},
}
LARGE: dict[str, dict[str, Any]] = {
    "mobilenetv3": {"ref": "timm:mobilenetv3_small_050"},
    "resnet18": {"ref": "timm:resnet18"},
    "deit-tiny": {"ref": "timm:deit_tiny_patch16_224"},
}
DAMAGES = ("weight", "swapped", "dropped", "clipped", "repeated", "rounded", "number")
MORE = "more than one number"
PLACES = 2
"""Of all damages but ``number``."""
LIMITS = {"encoder": 1.0, "deit-tiny": 1.0}
"""Where activations are clipped instead of at 6, which those between layers that normalise never reach."""
BATCH = 4
SECONDS = 60.0
"""What finding it may take."""


@dataclass(frozen=True)
class Found:
    """What became of one damaged engine."""

    model: str
    damage: str
    place: int
    verdict: str
    reason: str
    seconds: float
    """What verifying it took, with loading it."""


def main() -> int:
    """Run what is missing, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path)
    parser.add_argument("--models", default=",".join([*SMALL, *LARGE]))
    parser.add_argument("--damages", default=",".join(DAMAGES))
    parser.add_argument("--places", type=int, default=3, help="of the damage number")
    parser.add_argument("--anew", action="store_true", help="measure what was measured before")
    records.add_option(parser)
    options = parser.parse_args()
    found: list[Found] = []
    with registered("broken", "mlflow_ngraph_testing.broken:BrokenCompiler"):
        for model in options.models.split(","):
            study = _study({**SMALL, **LARGE}[model], model, options.damages.split(","), options.places)
            found += _measured(study, model, options.home, anew=options.anew)
            print(f"{model}: measured", file=sys.stderr, flush=True)
    return _report(found, options)


def _study(workload: dict[str, Any], model: str, damages: Sequence[str], times: int) -> Study:
    flags = [
        {"damage": damage, "place": place, "limit": LIMITS.get(model, 6.0)}
        for damage in damages
        for place in range(times if damage == "number" else PLACES)
    ]
    return parse(
        {
            "name": f"broken-{model}",
            "workloads": [workload],
            "compilers": ["identity", *({"name": "broken", "flags": one} for one in flags)],
            "batch_sizes": [BATCH],
            **BRIEFLY,
            "limits": {"reload_seconds": 0},
            "cache": "off",
        }
    )


def _measured(study: Study, model: str, home: Path | None, *, anew: bool) -> Iterator[Found]:
    directory = measured(study, home, anew=anew)
    verified = {
        event["lane"]: event["seconds"] for event in journal.read(directory) if event["event"] == "cell_verified"
    }
    for lane in replay.load(directory).lanes.values():
        if lane.lane.compiler == "broken":
            (cell,) = lane.cells.values()
            seconds = verified.get(lane.lane.id, 0.0)
            flags = lane.lane.flags
            yield Found(model, str(flags["damage"]), int(str(flags["place"])), cell.verdict.value, cell.reason, seconds)


def _report(found: Sequence[Found], options: argparse.Namespace) -> int:
    print("| model | damage | place | verdict | s | reason |", "|:--|:--|--:|:--|--:|:--|", sep="\n")
    for one in found:
        print(f"| {one.model} | {one.damage} | {one.place} | {one.verdict} | {one.seconds:.1f} | {one.reason} |")
    groups: dict[str, list[Found]] = defaultdict(list)
    for one in found:
        if one.verdict != "unsupported":
            size = "large models" if one.model in LARGE else "small models"
            groups[f"one number, {size}" if one.damage == "number" else MORE].append(one)
    figures = []
    for name, members in sorted(groups.items()):
        caught = [one for one in members if one.verdict == "parity_failed"]
        slow = [one for one in caught if one.seconds > SECONDS]
        longest = max((one.seconds for one in caught), default=0.0)
        print(
            f"{name}: {len(caught)} of {len(members)} found, {len(slow)} after more than {SECONDS:.0f} s; "
            f"longest {longest:.1f} s"
        )
        of, in_time = f"of {len(members)}", len(caught) - len(slow)
        if name == MORE:
            figure = records.at_least(f"found within {SECONDS:.0f} s", in_time, len(members), of)
            records.keep(options, "broken_engines", figure, Result(name="longest", value=round(longest, 1), unit="s"))
        else:
            figures.append(Result(name=f"found, {name}", value=in_time, unit=of))
    records.keep(options, "broken_engines_number", *figures)
    return int(any(one.verdict != "parity_failed" or one.seconds > SECONDS for one in groups[MORE]))


if __name__ == "__main__":
    sys.exit(main())
