"""Makes inputs whose values a case decides itself: lengths, offsets, page tables, factors. Only this file uses numpy.

Random values come from `--random_seed`, so that equal flags give an equal case. numpy is imported when a case is made,
so that `--help` does not wait for it.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Values = npt.NDArray[Any]


def floats(values: Iterable[float]) -> Values:
    """Return numbers as float32."""
    import numpy as np

    return np.array(list(values), dtype=np.float32)


def int32(values: Iterable[Any]) -> Values:
    """Return whole numbers, or rows of them, as int32."""
    import numpy as np

    return np.array(list(values), dtype=np.int32)


def generator(args: Namespace, *, salt: int = 0) -> np.random.Generator:
    """Return the generator of a case; another salt gives an independent one."""
    import numpy as np

    return np.random.default_rng((int(args.random_seed), salt))


def random_integers(args: Namespace, low: int, high: int, shape: int | Sequence[int], *, salt: int = 0) -> Values:
    """Return int32 in [low, high)."""
    import numpy as np

    return generator(args, salt=salt).integers(low, high, size=shape, dtype=np.int32)


def offsets(lengths: Iterable[int]) -> Values:
    """Return where each sequence begins, and the total: [0, l0, l0 + l1, …] as int32."""
    import numpy as np

    return np.concatenate(([0], np.cumsum(np.array(list(lengths), dtype=np.int64)))).astype(np.int32)


def permutation(args: Namespace, count: int, *, salt: int = 0) -> Values:
    """Return 0 … count - 1 in random order as int32."""
    import numpy as np

    return generator(args, salt=salt).permutation(count).astype(np.int32)


def small_floats(args: Namespace, count: int, scale: float) -> Values:
    """Return float32 normal numbers of this deviation that bfloat16 can hold; zeros for a scale of 0."""
    import numpy as np

    values = (generator(args, salt=2).standard_normal(count) * scale).astype(np.float32)
    kept: Values = (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    return kept


def choose_experts(args: Namespace, tokens: int, experts: int, top_k: int) -> tuple[Values, Values]:
    """Return the distinct experts of each token (int32) and their weights (float32): softmax over the chosen."""
    import numpy as np

    logits = generator(args, salt=3).standard_normal((tokens, experts))
    chosen = np.argsort(-logits, axis=1)[:, :top_k]
    weights = np.exp(np.take_along_axis(logits, chosen, axis=1))
    return chosen.astype(np.int32), (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
