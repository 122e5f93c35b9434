"""The value of a heartbeat: the meaning of each form, invalid values, and the version of an answer to a host."""

import msgspec
import pytest

from scheduler.operations.tick.heartbeat_intake import name_version
from scheduler.protocol.heartbeats import Heartbeat, format_heartbeat, read_heartbeat
from tests.builders import a_slot

FORMS = [
    (b"m1", Heartbeat("m1")),
    (b"m1 0:7:180", Heartbeat("m1", "0:7:180")),
    (b"m1 0:7:180 1790000000000 c2ln", Heartbeat("m1", "0:7:180", 1790000000000, "c2ln")),
    # Signed by a host that knows no version yet.
    (b"m1 - 5 c2ln", Heartbeat("m1", None, 5, "c2ln")),
]


@pytest.mark.parametrize(("value", "beat"), FORMS)
def test_each_form_is_read_as_it_is_written(value: bytes, beat: Heartbeat) -> None:
    assert format_heartbeat(beat).encode() == value
    assert read_heartbeat(value) == beat


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b" m1",
        b"m1  0:7:180",
        # A counter without its MAC.
        b"m1 0:7:180 5",
        b"m1 0:7:180 five c2ln",
        b"m1 0:7:180 -5 c2ln",
        b"m1 0:7:180 5 c2ln more",
        b"m1\n0:7:180",
        b"m\xff",
        b"m" * 2000,
    ],
)
def test_anything_else_is_no_heartbeat(value: bytes) -> None:
    assert read_heartbeat(value) is None


def test_the_version_changes_with_the_slot_its_epoch_and_the_timeout() -> None:
    slot = a_slot("lab-1", version=7)
    others = [
        name_version(msgspec.structs.replace(slot, version=8), 180.0),
        name_version(msgspec.structs.replace(slot, epoch=slot.epoch + 1), 180.0),
        name_version(slot, 60.0),
        name_version(slot, None),
    ]
    assert name_version(slot, 180.0) not in others
    assert len({*others}) == len(others)
