"""All modules of the zoo. Importing it imports torch."""

from __future__ import annotations

from tests.support.zoo import branches, chance, loops, magic, numbers, samples, state, structures
from tests.support.zoo.specimen import SPECIMENS, Specimen

MODULES = (branches, magic, loops, state, chance, samples, numbers, structures)


def specimens() -> dict[str, Specimen]:
    """By name, in the order of the modules."""
    return dict(SPECIMENS)
