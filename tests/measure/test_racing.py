"""Bets that do not pay while the hypothesis is true, and races that keep the best one however often one looks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from mlflow_ngraph.measure import racing
from mlflow_ngraph.measure.betting_tests import CAP, log_evidence
from mlflow_ngraph.measure.racing import ALPHA, Entrant, Race, Timed

Floats = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int], Floats]


def normal(rng: np.random.Generator, count: int) -> Floats:
    return rng.normal(0, 0.03, count)


def long_tailed(rng: np.random.Generator, count: int) -> Floats:
    return 0.01 * rng.standard_t(1.5, count)


def bursts(rng: np.random.Generator, count: int) -> Floats:
    """A quarter of the slices are held up by a tenth to twice their length; a difference has two of them."""

    def slices() -> Floats:
        return rng.normal(0, 0.01, count) + (rng.random(count) < 0.25) * rng.uniform(0.1, 1.1, count)

    return slices() - slices()


def spikes(rng: np.random.Generator, count: int) -> Floats:
    """Never faster than a floor, and now and then much slower."""
    return rng.exponential(0.05, count) - rng.exponential(0.05, count)


def waves(rng: np.random.Generator, count: int) -> Floats:
    """What the machine does outlives a round; which of two lanes comes first is drawn in each."""
    state = np.zeros(2 * count)
    for place in range(1, state.size):
        state[place] = 0.9 * state[place - 1] + rng.normal(0, 0.05)
    return rng.choice([-1.0, 1.0], count) * (state[::2] - state[1::2])


NOISES = (normal, long_tailed, bursts, spikes, waves)


def evidence(differences: Floats, centre: float = 0.0) -> float:
    return math.exp(log_evidence(differences, differences, centre))


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("rounds", [1, 2, 3, 6, 15])
def test_a_bet_does_not_pay_while_the_hypothesis_is_true(noise: Draw, rounds: int) -> None:
    rng = np.random.default_rng([rounds, 1])
    stakes = np.array([evidence(noise(rng, rounds)) for _ in range(1200)])
    assert stakes.mean() < 1 + 3 * stakes.std() / math.sqrt(stakes.size)
    assert stakes.mean() < 1.5
    above = np.array([evidence(noise(rng, rounds) + 0.02) for _ in range(300)])
    assert above.mean() < 1.5, "a hypothesis is about its centre and all above"


@pytest.mark.parametrize("noise", NOISES)
def test_evidence_grows_with_what_is_asked_for(noise: Draw) -> None:
    """The higher the centre, the surer that differences lie below it: so there is an end of an interval."""
    differences = noise(np.random.default_rng(4), 12) - 0.1
    found = [evidence(differences, centre) for centre in np.linspace(-0.3, 0.5, 33)]
    assert all(low <= high * 1.0001 for low, high in itertools.pairwise(found))


def test_what_one_round_says_is_bounded() -> None:
    steady = np.full(9, -0.02)
    disturbed = np.where(np.arange(9) == 4, -50.0, -0.02)
    assert evidence(np.array([-50.0])) < 20
    assert evidence(disturbed) < 20 * evidence(steady)


def test_a_stall_is_no_evidence_against_what_was_once_fast() -> None:
    stalled = np.full(3, -5.0)
    assert log_evidence(stalled, stalled, 0.0) > math.log(1e4)
    assert log_evidence(stalled, np.full(3, 0.0), 0.0) < math.log(CAP**3)


@pytest.mark.parametrize(
    ("difference", "scatter", "most"), [(-1.6, 0.05, 3), (-0.22, 0.03, 7), (-0.1, 0.02, 9), (-0.05, 0.01, 11)]
)
def test_clear_differences_need_few_rounds(difference: float, scatter: float, most: int) -> None:
    needed = []
    for seed in range(20):
        drawn = np.random.default_rng(seed).normal(difference, scatter, 40)
        needed.append(next(count for count in range(1, 41) if evidence(drawn[:count]) > 400))
    assert np.median(needed) <= most


def run(noise: Draw, levels: list[float], seed: int, rounds: int) -> tuple[Race, bool]:
    """A race of lanes whose logarithmic durations differ by ``levels``; whether the first of them was removed."""
    rng = np.random.default_rng([seed, 7])
    race = Race({f"c{place}": Entrant(f"c{place}", 1) for place in range(len(levels))}, "throughput")
    race.start(f"c{place}" for place in range(len(levels)))
    removed = False
    for number in range(rounds):
        shared = rng.normal(0, 0.1)
        own = noise(rng, len(levels))
        for cell in race.racing:
            place = int(cell[1:])
            seconds = math.exp(shared + own[place] + levels[place])
            race.measured((1, number), cell, Timed(seconds, seconds, 1.0))
        removed |= any(departure.cell == "c0" for departure in race.departures())
        if race.decided():
            break
    return race, removed


@pytest.mark.parametrize("noise", NOISES)
def test_the_best_one_is_hardly_ever_removed_however_often_one_looks(noise: Draw) -> None:
    """Equal lanes, and one that is a hundredth better than the others: one looks after every round."""
    races = 30
    lost = sum(run(noise, [0.0, 0.0, 0.0], seed, 20)[1] for seed in range(races))
    lost += sum(run(noise, [0.0, 0.01, 0.01], seed, 20)[1] for seed in range(races))
    assert lost <= ALPHA * 2 * races


def test_a_race_says_who_beat_whom_by_how_much() -> None:
    rng = np.random.default_rng(3)
    race = Race({name: Entrant(name, 1) for name in ("slow", "fast")}, "latency")
    race.start(["slow", "fast"])
    gone: list[racing.Departure] = []
    for number in range(30):
        for cell, level in (("slow", 1.25), ("fast", 1.0)):
            seconds = level * math.exp(rng.normal(0, 0.02))
            race.measured((1, number), cell, Timed(seconds, seconds, 8.0))
        gone = race.departures()
        if gone:
            break
    (departure,) = gone
    assert (departure.cell, departure.rival) == ("slow", "fast")
    assert departure.rounds == race.rounds("slow") < 9
    assert departure.ratio == pytest.approx(0.8, rel=0.03)
    assert 0.8 < departure.bound < 0.99
    assert race.decided() == "won"
    assert race.racing == ["fast"]


def test_a_baseline_stays_until_it_has_the_rounds_of_a_winner() -> None:
    def left_after(*, baseline: bool) -> int:
        race = Race({"slow": Entrant("slow", 1, baseline), "fast": Entrant("fast", 1)}, "throughput")
        race.start(["slow", "fast"])
        for number in range(10):
            race.measured((1, number), "slow", Timed(60.0, 60.0, 1.0))
            race.measured((1, number), "fast", Timed(1.0, 1.0, 1.0))
            if race.departures():
                break
        return race.rounds("slow")

    assert left_after(baseline=False) < racing.ROUNDS_OF_WINNER == left_after(baseline=True)


def test_what_cannot_be_the_answer_removes_nobody() -> None:
    race = Race({name: Entrant(name, 1) for name in ("slow", "fast")}, "throughput")
    race.start(["slow", "fast"])
    race.barred.add("fast")
    for number in range(20):
        race.measured((1, number), "slow", Timed(1.0 + number / 1e4, 1.0, 1.0))
        race.measured((1, number), "fast", Timed(0.5 + number / 1e4, 0.5, 1.0))
    assert race.departures() == []
    assert race.leader() == "slow"
    assert race.decided() is None, "the other one may turn out to keep the limits"
    race.barred.clear()
    assert [departure.cell for departure in race.departures()] == ["slow"]


def test_a_race_with_a_cell_that_has_no_round_is_open() -> None:
    race = Race({name: Entrant(name, 1) for name in ("one", "two", "late")}, "throughput")
    race.start(["one", "two"])
    for number in range(12):
        race.measured((1, number), "one", Timed(1.0 + number / 1e4, 1.0, 1.0))
        race.measured((1, number), "two", Timed(1.0 + number / 1e4, 1.0, 1.0))
    assert race.decided() == "alike"
    race.start(["late"])
    assert race.decided() is None


def test_the_smallest_batch_starts_and_the_largest_one_is_next() -> None:
    entrants = {f"a-b{batch}": Entrant("a", batch) for batch in (4, 1, 8, 2)}
    assert Race(entrants, "throughput").batch_sizes == [1, 8, 4, 2]
    assert Race(entrants, "latency").batch_sizes == [1, 2, 4, 8]


def test_figures_count_samples_or_time() -> None:
    entrants = {"a-b1": Entrant("a", 1), "a-b4": Entrant("a", 4)}
    for objective, expected in (("throughput", 2.0), ("latency", 0.5)):
        race = Race(entrants, objective)  # type: ignore[arg-type]
        race.start(entrants)
        for number in range(3):
            race.measured((1, number), "a-b1", Timed(1.0, 1.0, 1.0))
            race.measured((1, number), "a-b4", Timed(2.0, 2.0, 4.0))
        assert float(race.ratio("a-b4", "a-b1").value) == pytest.approx(expected)


def test_a_hopeless_lane_need_not_start_at_larger_batch_sizes() -> None:
    entrants = {f"{lane}-b{batch}": Entrant(lane, batch) for lane in ("good", "awful", "poor") for batch in (1, 8)}
    race = Race(entrants, "throughput")
    race.start([cell for cell in entrants if cell.endswith("b1")])
    for number in range(3):
        for lane, seconds in (("good", 1.0), ("awful", 60.0), ("poor", 4.0)):
            race.measured((1, number), f"{lane}-b1", Timed(seconds, seconds, 1.0))
        race.departures()
    found = race.exclusion("awful-b8")
    assert found is not None
    assert found.smaller == "awful-b1"
    assert 8 / 60 < found.bound < 1
    assert race.exclusion("poor-b8") is None, "eight samples at once may take no longer than one"
    assert race.exclusion("good-b8") is None
