"""The history of the rules: which versions were applied, when, by what source, and with which changes."""

from collections.abc import Sequence
from typing import Any

from scheduler.model.rule_changes import list_changes
from scheduler.operations.apply import RULES_CHANGED
from scheduler.ports import AppliedRules, EventFilter, Store


def describe_history(store: Store, limit: int) -> list[dict[str, Any]]:
    """Return the newest `limit` versions of the rules, oldest first, each with its changes to the version before."""
    # One version more is read, so that the oldest of them has one to be compared with.
    return _describe_versions(store, store.read_rules_history(limit=limit + 1))[-limit:]


def _describe_versions(store: Store, found: Sequence[AppliedRules]) -> list[dict[str, Any]]:
    """Return the versions of the rules in `found` as dicts, each with its changes to the version before. The first
    version is compared with empty rules.

    The source of a version is None if the event of its application has been deleted.
    """
    events = store.read_events(EventFilter(name=RULES_CHANGED, newest=True, limit=10_000))
    sources = {int(str(each.detail["version"])): each.detail.get("source") for each in events}
    before: dict[str, Any] = {}
    images: dict[str, str] = {}
    described = []
    for each in found:
        described.append(
            {
                "version": each.version,
                "applied_at": each.applied_at,
                "source": sources.get(each.version),
                "changes": [
                    *(str(change) for change in list_changes(before, each.document)),
                    *(
                        f"image {source}: {images.get(source, 'none')} -> {image}"
                        for source, image in each.images.items()
                        if images.get(source) != image
                    ),
                ],
            }
        )
        before, images = each.document, each.images
    return described
