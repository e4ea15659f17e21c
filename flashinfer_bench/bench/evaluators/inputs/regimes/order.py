"""In which order calls on inputs of other regimes are made and judged: chance decides, and the strongest come sooner.

Of a slow reference one or two calls are judged, of a slow solution one is made. Which ones, nobody knows before; were
one regime always first, whoever is right on it alone would pass.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from flashinfer_bench.bench.evaluators.inputs.regimes.parts import AXES, FEW_GATES, STRETCH

STRENGTH: Final[Mapping[str, float]] = {
    "heavy_tails": 4.0,
    "larger": 1.0,
    "far": 1.0,
    **dict.fromkeys((STRETCH, FEW_GATES, *AXES), 0.5),
}
"""How likely a regime comes before others. Of 20 attacks that usual inputs do not stop, calls of `heavy_tails` stop
ten, also all that calls of `larger` do. Each of the other regimes stops some that nothing else does. Those of which a
part differs are for attacks that look at their inputs, and miss each of these in many calls."""
USUAL_STRENGTH: Final = 2.0

Called = TypeVar("Called")


def put_in_order(
    calls: Sequence[Called], chance: random.Random, name_of: Callable[[Called], str] = str
) -> list[Called]:
    """Return calls in an order that chance chooses by their strength; one of each regime comes before others of it.

    Args:
        calls: in any order.
        chance: nobody outside the judge knows it.
        name_of: gives the regime of a call.
    """
    keys = {name: chance.expovariate(STRENGTH.get(name, USUAL_STRENGTH)) for name in sorted(set(map(name_of, calls)))}
    seen: Counter[str] = Counter()
    found: list[tuple[int, float, Called]] = []
    for call in chance.sample(calls, len(calls)):
        name = name_of(call)
        found.append((seen[name], keys[name], call))
        seen[name] += 1
    return [call for *_, call in sorted(found, key=lambda one: one[:2])]
