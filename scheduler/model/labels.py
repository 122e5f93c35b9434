"""Labels: tables of names and values. A slot has a required label if it has the same name with exactly
the same value.
"""

from collections.abc import Mapping

Labels = Mapping[str, str]


def has_labels(offered: Labels, required: Labels) -> bool:
    """Return whether `offered`, the labels of a slot, contains every required label with the same value. A missing
    label equals no value, not even "".
    """
    return required.items() <= offered.items()


def count_preferred(offered: Labels, preferred: Labels) -> int:
    """Return how many of the preferred labels are in `offered`, the labels of a slot, with the same value."""
    return len(preferred.items() & offered.items()) if preferred else 0


def shape_of(labels: Labels) -> tuple[tuple[str, str], ...]:
    """Return the labels as a sorted tuple of (name, value), for use as a key. Equal tables give equal tuples."""
    return tuple(sorted(labels.items())) if labels else ()
