"""Choose the first engine of a ranking that is trusted and fits this machine, by its manifest; list its rivals.

Requirements of engines are in their manifests, which are small. Manifests are read in the order of the ranking until
one fits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlflow_ngraph.analysis.ranking import Candidate
from mlflow_ngraph.engines import compatibility
from mlflow_ngraph.engines import trust as trusting
from mlflow_ngraph.errors import EngineError, TrackingError
from mlflow_ngraph.tracking import download
from mlflow_ngraph.tracking.trusted import trusted_manifest

if TYPE_CHECKING:
    from mlflow_ngraph.analysis.ranking import Ranking
    from mlflow_ngraph.analysis.undecided import Rival
    from mlflow_ngraph.engines.manifest import Manifest
    from mlflow_ngraph.engines.trust import Rules
    from mlflow_ngraph.tracking.download import Remote

_AT_ONCE = 8
_REASONS = 4
"""Reasons named in a message."""


@dataclass(frozen=True)
class BestEngine:
    """The chosen engine, and its alternatives."""

    chosen: Candidate
    remote: Remote
    manifest: Manifest
    passed_over: tuple[tuple[Candidate, str], ...]
    """Better engines that do not fit, the best first, with the reason."""
    next_best: Candidate | None
    """Next engine of the ranking; its manifest was not read."""
    significant: bool
    """The chosen engine is significantly better than the next one."""
    considered: int
    """Cells that are ok, have an engine and keep all bounds."""
    left_out: Mapping[str, int]
    """Number of excluded cells by reason."""
    rivals: tuple[Rival, ...]
    """Cells that fit this machine and could be better. With any, the answer is undecided."""


def answer(ranking: Ranking, servers: Mapping[str, str], rules: Rules = trusting.EVERYTHING) -> BestEngine:
    """First engine of a ranking that is trusted and fits this machine.

    ``servers`` are tracking URIs by their names in the table, which lack passwords. Raises `EngineError`, which says
    why not and how to build one, if none of the engines fits this machine.
    """
    ranked = ranking.candidates
    passed_over: list[tuple[Candidate, str]] = []
    first: Manifest | None = None
    for candidate, remote, manifest, reason in _looked_at(ranked, servers, rules):
        if not reason and remote is not None and manifest is not None:
            behind = [other for other in ranked[len(passed_over) + 1 :] if other.model_id != candidate.model_id]
            next_best = behind[0] if behind else None
            significant = bool(passed_over) or next_best is None or next_best.row["cell"] not in ranking.tied
            return BestEngine(
                candidate, remote, manifest, tuple(passed_over), next_best, significant, len(ranked), ranking.left_out,
                _rivals(ranking, len(passed_over), servers, rules),
            )  # fmt: skip
        first = first or manifest
        passed_over.append((candidate, reason))
    raise EngineError(_none(passed_over, first))


def _rivals(ranking: Ranking, place: int, servers: Mapping[str, str], rules: Rules) -> tuple[Rival, ...]:
    """Rivals of the chosen engine that fit this machine; without an engine, the device decides."""
    chosen = ranking.candidates[place]
    able = [rival for rival in ranking.rivals_of(place) if not rival.same_engine]
    without = [rival for rival in able if rival.row["model_id"] is None and rival.row["device"] == chosen.row["device"]]
    logged = [rival for rival in able if rival.row["model_id"] is not None]
    looked = _looked_at([Candidate(rival.row, rival.metric) for rival in logged], servers, rules)
    fitting = [rival for rival, (*_, reason) in zip(logged, looked, strict=True) if not reason]
    return tuple(rival for rival in able if rival in fitting or rival in without)


def _looked_at(
    ranked: Sequence[Candidate], servers: Mapping[str, str], rules: Rules
) -> Iterator[tuple[Candidate, Remote | None, Manifest | None, str]]:
    """Candidates in their order, with manifest and reason for exclusion.

    Usually the first one fits. If it does not, manifests are fetched concurrently.
    """
    known: dict[str, tuple[Remote | None, Manifest | None, str]] = {}
    without = {name: compatibility.unavailable(name) for name in {str(cell.row["compiler"]) for cell in ranked}}
    possible = list(dict.fromkeys(
        (cell.model_id, str(cell.row["tracking_uri"])) for cell in ranked if not without[str(cell.row["compiler"])]
    ))  # fmt: skip
    waiting = iter(_windows(possible))
    with ThreadPoolExecutor(_AT_ONCE, "ngraph-manifest") as pool:
        for candidate in ranked:
            absent = without[str(candidate.row["compiler"])]
            if absent:
                yield candidate, None, None, absent
                continue
            while candidate.model_id not in known:
                window = next(waiting)
                looked = pool.map(lambda source: _look(source[0], servers.get(source[1], source[1]), rules), window)
                known.update(zip((source[0] for source in window), looked, strict=True))
            yield candidate, *known[candidate.model_id]


def _windows(items: Sequence[tuple[str, str]]) -> Iterator[Sequence[tuple[str, str]]]:
    yield items[:1]
    for start in range(1, len(items), _AT_ONCE):
        yield items[start : start + _AT_ONCE]


def _look(model_id: str, tracking_uri: str, rules: Rules) -> tuple[Remote | None, Manifest | None, str]:
    try:
        remote = download.of_id(model_id, tracking_uri)
        manifest = trusted_manifest(remote, rules).manifest
    except (EngineError, TrackingError) as error:  # a deleted engine must not prevent using others
        return None, None, str(error)
    return remote, manifest, compatibility.incompatibility(manifest)


def _none(passed_over: Sequence[tuple[Candidate, str]], best: Manifest | None) -> str:
    reasons: dict[str, list[Candidate]] = {}
    for candidate, reason in passed_over:
        reasons.setdefault(reason, []).append(candidate)
    said = [
        f"{len(those)} of {', '.join(sorted({str(engine.row['compiler_label']) for engine in those}))}: {reason}"
        for reason, those in list(reasons.items())[:_REASONS]
    ]
    more = f"; and {len(reasons) - _REASONS} other reasons" if len(reasons) > _REASONS else ""
    todo = f"; {compatibility.rebuild(best)}" if best is not None else ""
    return f"no engine of {len(passed_over)} that were measured fits this machine: {'; '.join(said)}{more}{todo}"
