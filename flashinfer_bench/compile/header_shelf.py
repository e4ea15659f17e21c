"""The precompiled headers of a run: which of them are there, which is worth making, and who waits for it.

At most one is compiled at a time, beside the builds, which read the header's text until it is there. Where it cannot be
compiled they go on reading the text, and nobody is told.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from typing import Final

from flashinfer_bench.compile.artifact import Artifact
from flashinfer_bench.compile.building import Building, Outcome
from flashinfer_bench.compile.cache import ArtifactCache, Lease
from flashinfer_bench.compile.headers import Header
from flashinfer_bench.compile.recipe import BuildRecipe
from flashinfer_bench.compile.step_process import StepLimits

LEAST_BUILDS: Final = 3
"""A header is precompiled where at least so many builds wait for it that find no core free. It takes one and a half
times as long as one of them, and saves each about half of its time."""
PATIENCE: Final = 3.0
"""Builds wait for a header that is being compiled for at most so many times what a build took without it."""


class HeaderShelf:
    """The precompiled headers that a run may use. Its owner waits on `building` as on any other build.

    Args:
        cache: where headers are kept.
        lease: gets the digest of each that is used.
        limits: the time and memory for compiling one.
    """

    def __init__(self, cache: ArtifactCache, lease: Lease, limits: StepLimits) -> None:
        self._cache = cache
        self._lease = lease
        self._limits = limits
        self.building: Building | None = None
        """The header that is being compiled."""
        self._known: dict[str, Header | None] = {}
        """Digest → the header, or None where it cannot be compiled."""
        self._plain_s: dict[str, float] = {}
        """Digest → seconds that a build took which read the header's text."""

    def find(self, recipe: BuildRecipe) -> Header | None:
        """Return the header that a build may take; None where there is none, or none that fits."""
        wanted = recipe.header
        if wanted is None:
            return None
        if wanted.digest not in self._known and not self._is_under_way(wanted):
            outcome = self._make(wanted).look_up()
            if outcome is not None:
                self._keep(wanted, outcome)
        header = self._known.get(wanted.digest)
        return header if header is not None and header.fits(recipe) else None

    def begin(self, waiting: Iterable[BuildRecipe], free: int) -> None:
        """Start compiling a header where enough builds are still to begin, of which `free` can begin now."""
        wanted = [recipe.header for recipe in waiting if recipe.header is not None]
        if self.building is not None or len(wanted) - free < LEAST_BUILDS:
            return
        counts = Counter(header.digest for header in wanted if header.digest not in self._known)
        for digest, count in counts.most_common(1):
            if count - free >= LEAST_BUILDS:
                header = next(header for header in wanted if header.digest == digest)
                building = self._make(header)
                outcome = building.begin()
                if outcome is not None:
                    self._keep(header, outcome)
                elif building.process is not None:
                    self.building = building

    def advance(self, *, is_readable: bool) -> bool:
        """Read what the compiler of a header says; tell whether a header was made."""
        building = self.building
        if building is None:
            return False
        outcome = building.advance() if is_readable else building.check_deadline()
        if outcome is not None:
            self.building = None
            self._keep(building.recipe, outcome)
        return isinstance(outcome, Artifact)

    def note(self, building: Building) -> None:
        """Note how long a build took that read the text of a header."""
        has_read = building.header is None and not building.was_cached and not building.is_apart
        if building.recipe.header is not None and has_read and building.seconds > 0:
            self._plain_s[building.recipe.header.digest] = building.seconds

    def is_awaited(self, recipe: BuildRecipe) -> bool:
        """Tell whether a build should wait for the header that is being compiled.

        It should as soon as another has ended that read the header's text: the header takes not much longer than that.
        """
        if self.building is None or self.building.process is None or not self._is_under_way(recipe.header):
            return False
        plain_s = self._plain_s.get(self.building.recipe.digest, 0.0)
        return time.monotonic() - self.building.process.started < PATIENCE * plain_s

    def cancel(self) -> None:
        """End the compiler and leave nothing half made."""
        if self.building is not None:
            self.building.cancel()
            self.building = None

    def _is_under_way(self, header: BuildRecipe | None) -> bool:
        return header is not None and self.building is not None and self.building.recipe.digest == header.digest

    def _make(self, header: BuildRecipe) -> Building:
        return Building(None, header, self._cache, self._lease, self._limits)

    def _keep(self, recipe: BuildRecipe, outcome: Outcome) -> None:
        try:
            self._known[recipe.digest] = Header.of(outcome, recipe) if isinstance(outcome, Artifact) else None
        except OSError:
            self._known[recipe.digest] = None
