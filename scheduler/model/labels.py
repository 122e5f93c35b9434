"""Labels: maps of a label name to a value. A required label must be present with exactly the required value."""

from collections.abc import Mapping

Labels = Mapping[str, str]


def has_labels(offered: Labels, required: Labels) -> bool:
    """Return whether every required label is offered with an equal value. A missing label matches no value, not even
    "".
    """
    return required.items() <= offered.items()


def count_preferred(offered: Labels, preferred: Labels) -> int:
    """Return the number of preferred labels that are offered with an equal value."""
    return len(preferred.items() & offered.items()) if preferred else 0


def shape_of(labels: Labels) -> tuple[tuple[str, str], ...]:
    """Return the labels in a hashable form. Equal maps give equal results."""
    return tuple(sorted(labels.items()))
