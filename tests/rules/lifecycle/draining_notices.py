"""What notices have in common that drain a slot before EC2 takes or changes its machine: cases, and their check."""

from collections.abc import Callable

from tests.rules.playing import ON_ONE, Document, a_scenario, a_slot, act, notice, play_out, submit, tick, ticks

Case = tuple[Document, list[list[str]], list[str]]
"""A scenario, the decisions of each of its ticks, and the first events of `linux-1`."""


def common_cases(give: Callable[..., Document], setting: str) -> dict[str, Case]:
    """Return the cases of a notice. `give(at, slot="linux-1")`: the notice; `setting`: the key of the pool that may
    ignore it, which is also the reason of the terminations.
    """
    return {
        # It takes no new lease, its leases run on, and the next reservation gets another machine.
        "drains; its leases run on until they end": (
            a_scenario(
                give(0),
                submit(0, "r2"),
                *ticks(0, 9000),
                act(9001, "release", "r1"),
                tick(9002),
                pool={"max_leases_per_slot": 2},
                **ON_ONE,
            ),
            [["launch linux-2 demand", "r2 waits booting"], ["assign r2 linux-2"], ["terminate linux-1 drained"]],
            ["0 slot_draining linux-1"],
        ),
        "in flight: terminated by the next tick, and replaced": (
            a_scenario(
                give(0),
                tick(0),
                pool={"min_slots": 1},
                slots=[a_slot("linux-1", "booting")],
                cloud={"boot": 60, "terminate": 9},
            ),
            [[f"terminate linux-1 {setting}", "launch linux-2 minimum"]],
            [],
        ),
        "drain_timeout applies to it": (
            a_scenario(give(5), *ticks(64, 65), pool={"drain_timeout": 60, "max_slots": 1}, **ON_ONE),
            [[], ["requeue r1 slot_draining", "terminate linux-1 timeout", "r1 waits at_max_slots"]],
            ["5 slot_draining linux-1"],
        ),
        "ignored in flight": (
            a_scenario(
                give(0),
                *ticks(0, 60),
                pool={setting: "ignore", "min_slots": 1},
                slots=[a_slot("linux-1", "booting")],
                cloud={"boot": 60},
            ),
            [[], []],
            ["60 slot_binding linux-1", "60 slot_ready linux-1"],
        ),
        "a second notice changes nothing": (
            a_scenario(give(0), give(1), tick(1), pool={"drain_timeout": 60, "max_slots": 1}, **ON_ONE),
            [[]],
            ["0 slot_draining linux-1"],
        ),
        "then interrupted: the leases of a slot that drains already are requeued in the same way": (
            a_scenario(
                give(0),
                tick(0),
                notice(5),
                *ticks(5),
                scheduler={"interruption_grace": 0},
                pool={"max_slots": 1},
                **ON_ONE,
            ),
            [[], ["requeue r1 slot_interrupted", "terminate linux-1 drained", "r1 waits at_max_slots"]],
            ["0 slot_draining linux-1"],
        ),
        "an empty or terminating slot stays as it is": (
            a_scenario(
                give(0), give(0, "linux-2"), tick(0), slots=[a_slot("linux-2", "terminating")], cloud={"terminate": 60}
            ),
            [[]],
            [],
        ),
    }


def check(case: Case) -> None:
    """Play the scenario of a case, and compare its decisions and events."""
    document, expected, events = case
    played = play_out(document)
    assert played.ticks == expected
    events_of_one = [event for event in played.events if event.endswith(" linux-1")]
    assert events_of_one[: len(events)] == events
    assert events or not any("slot_draining" in event for event in events_of_one)
