"""Labels: maps of a name to a value. Required ones must be there with that very value."""

from collections.abc import Mapping

Labels = Mapping[str, str]


def has_labels(offered: Labels, required: Labels) -> bool:
    """Whether every required label is there with an equal value; an absent one matches nothing, "" neither."""
    return required.items() <= offered.items()


def count_preferred(offered: Labels, preferred: Labels) -> int:
    """How many of the preferred labels are there with an equal value."""
    return len(preferred.items() & offered.items()) if preferred else 0


def shape_of(labels: Labels) -> tuple[tuple[str, str], ...]:
    """A hashable form: equal maps have equal shapes."""
    return tuple(sorted(labels.items()))
