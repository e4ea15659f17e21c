"""The statistics behind the verdict on samplers: known values, and that odds are what they claim to be."""

from __future__ import annotations

import pytest
import torch

from flashinfer_bench.bench.evaluators.sampling.statistics import (
    chi_square_tail,
    measure_agreement,
    measure_chances,
    measure_distance,
    measure_overuse,
)

pytestmark = pytest.mark.cpu


def uniform(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("statistic", "degrees", "tail"),
    [(3.841459, 1, 0.05), (18.307038, 10, 0.05), (0.0, 5, 1.0), (29.588298, 10, 0.001)],
)
def test_the_chi_square_tail_has_its_textbook_values(statistic, degrees, tail):
    assert chi_square_tail(statistic, degrees) == pytest.approx(tail, rel=1e-4)


@pytest.mark.parametrize("shape", [(100, 1), (100, 8), (20, 64)])
def test_odds_of_one_percent_come_up_once_in_a_hundred_times(shape):
    rounds = 600
    seen = [measure_chances(uniform(*shape, seed=seed)) for seed in range(rounds)]
    for test in seen[0]:
        assert sum(chances[test] < 0.01 for chances in seen) <= 0.01 * rounds + 4 * (0.01 * rounds) ** 0.5, test


def test_each_way_to_fail_has_its_test():
    places = uniform(100, 64)
    faults = {
        "shares": places**1.2,
        "shares within a row": (places * 0.5) + 0.5 * (torch.arange(64) % 2),
        "independence of calls": places[:50].repeat_interleave(2, dim=0),
        "independence of rows": places[:, :32].repeat(1, 2),
    }
    for test, faulty in faults.items():
        assert measure_chances(faulty)[test] < 1e-6, test
        assert measure_chances(places)[test] > 1e-3, test


def test_the_distance_of_even_places_stays_below_its_noise():
    for seed in range(100):
        distance = measure_distance(uniform(1000, seed=seed))
        assert distance.tvd < distance.noise


def test_the_distance_is_the_mass_that_was_moved():
    places = uniform(100_000)
    moved = torch.where(uniform(100_000, seed=1) < 0.2, places / 2, places)
    assert measure_distance(moved).tvd == pytest.approx(0.1, abs=0.01)


def test_a_token_drawn_in_every_call_is_odd_unless_it_is_nearly_certain():
    counts = torch.tensor([100.0])
    assert measure_overuse(counts, torch.tensor([0.5]).double(), calls=100, candidates=1000) < 1e-20
    assert measure_overuse(counts, torch.tensor([0.9999]).double(), calls=100, candidates=1000) == 1.0


def test_rows_that_agree_within_calls_are_odd_and_rows_that_agree_anyway_are_not():
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(50, (100, 16), generator=generator)
    assert measure_agreement(tokens, generator) > 1e-3
    assert measure_agreement(torch.full((100, 16), 7), generator) > 1e-3
    shared = torch.where(torch.rand(100, 16, generator=generator) < 0.3, tokens[:, :1], tokens)
    assert measure_agreement(shared, generator) < 1e-6
