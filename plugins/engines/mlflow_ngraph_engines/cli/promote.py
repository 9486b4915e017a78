"""``mlflow-ngraph engine promote``: make the better engine the champion of its device."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlflow_ngraph.cli import output, trust_options
from mlflow_ngraph.errors import NO_GOOD_ANSWER

if TYPE_CHECKING:
    from mlflow_ngraph_engines.promotion import Promotion

_STYLES = {"promoted": "green", "possible": "green", "unchanged": "", "refused": "yellow"}


@click.command()
@click.argument("model", metavar="MODEL|RUN")
@click.option("--name", required=True, metavar="NAME", help="The registered model; made where there is none.")
@click.option("--alias", metavar="NAME", help="What points at the champion; by default DEVICE-champion.")
@click.option("--metric", metavar="NAME", default="throughput", show_default=True, help="What decides.")
@click.option(
    "--batch-size",
    "batch",
    type=click.IntRange(1),
    help="Compare at this batch size; choose the engine of a run by it.",
)
@click.option("--accept-undecided", is_flag=True,
              help="Promote it although another cell could beat it, for all that can be told; that is recorded.")  # fmt: skip
@click.option("--force", is_flag=True, help="Overrule whatever speaks against it; that is recorded.")
@click.option("--dry-run", is_flag=True, help="Say what would be done; write nothing.")
@trust_options.sign_option
@click.option("--tracking-uri", metavar="URI", help="Where the engine is; by default what MLflow is configured to use.")
@output.json_option
def promote(
    model: str,
    name: str,
    alias: str | None,
    metric: str,
    batch: int | None,
    accept_undecided: bool,
    force: bool,
    dry_run: bool,
    sign: Path | None,
    tracking_uri: str | None,
    as_json: bool,
) -> int:
    """Register an engine, and let an alias point at it if it is significantly better than the one before.

    MODEL is models:/MODEL_ID, the bare id, or models:/NAME/VERSION; RUN is the id of a study or lane run with a single
    engine, or with a single one at --batch-size. The engine has to be ok at all its batch sizes. It is compared with the
    champion at the batch size that each of them does best, or at --batch-size. Another engine of the model that was measured
    on the same machine, and may be better by more than 3 %, leaves undecided which is best. The evidence becomes the
    description of the version. The exit code is 3 if the engine is not good enough.
    """
    from mlflow_ngraph_engines import promotion

    key = trust_options.load(sign) if sign is not None and not dry_run else None
    outcome = promotion.promote(
        model, name, alias=alias, metric=metric, batch=batch, accept_undecided=accept_undecided, force=force,
        dry_run=dry_run, sign=key, tracking_uri=tracking_uri,
    )  # fmt: skip
    if as_json:
        output.print_json(document(outcome))
    else:
        _show(outcome)
    return NO_GOOD_ANSWER if outcome.state == "refused" else 0


def document(found: Promotion) -> dict[str, Any]:
    """The result as JSON."""
    comparison = found.comparison
    return {
        "state": found.state,
        "name": found.name,
        "alias": found.alias,
        "model_id": found.candidate.model_id,
        "version": found.version,
        "over": found.over,
        "comparison": None if comparison is None else {**asdict(comparison), "better": comparison.better},
        "objections": list(found.objections),
        "overruled": bool(found.objections) and found.state != "refused",
        "signed_by": found.signed_by,
        "description": found.description,
    }


def _show(promotion: Promotion) -> None:
    console = output.console()
    called = f"{promotion.name}@{promotion.alias}"
    engine = promotion.candidate.name
    before = f" in place of version {promotion.over}" if promotion.over else ""
    said = {
        "promoted": f"{called} is version {promotion.version} now{before}: {engine}",
        "unchanged": f"{called} is this engine already, as version {promotion.version}: {engine}",
        "possible": f"{called} would be {engine}{before}",
        "refused": f"{called} {'stays as it is' if promotion.over else 'is not made'}: {engine} is not promoted",
    }[promotion.state]
    console.print(said, style=_STYLES[promotion.state], soft_wrap=True)
    if promotion.comparison is not None:
        console.print(promotion.comparison.text, markup=False, soft_wrap=True)
    for objection in promotion.objections:
        console.print(f"- {objection}", markup=False, soft_wrap=True)
    if promotion.state == "refused":
        remedy = "--accept-undecided" if promotion.only_undecided else "--force"
        console.print(f"{remedy} promotes it nevertheless, and records why it should not have been", soft_wrap=True)
    if promotion.signed_by:
        console.print(f"signed by {promotion.signed_by}", soft_wrap=True)
