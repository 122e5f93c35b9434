"""Draw a table of legal moves: the states in a column, moves to a later state on the right, the others on the left."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Final

from examples.svg import arrow, frame

_ROW: Final = 66
"""The distance of two states, in pixels."""
_LEFT: Final = 350
_RIGHT: Final = 510
_BEND: Final = 34
"""How far a curve leaves the column for each state that it passes, in pixels."""

Move = tuple[str, str]


def draw_moves(states: Sequence[str], moves: Collection[Move]) -> str:
    """Return an SVG of the states in this order and of the moves (from, to) between them."""
    row = {state: number for number, state in enumerate(states)}
    ports = _find_ports(row, moves)
    lines = []
    for move in moves:
        start, end = ports[move]
        bend = _BEND * abs(row[move[0]] - row[move[1]])
        x, far = (_RIGHT, _RIGHT + bend) if row[move[0]] < row[move[1]] else (_LEFT, _LEFT - bend)
        tip = x + 3 if x == _RIGHT else x - 3
        lines.append(arrow(f"M{x} {start:.0f}C{far} {start:.0f} {far} {end:.0f} {tip} {end:.0f}"))
    for state, number in row.items():
        y = 20 + number * _ROW
        lines.append(f'<rect x="{_LEFT}" y="{y}" width="{_RIGHT - _LEFT}" height="46" rx="4"/>')
        lines.append(
            f'<text class="name" text-anchor="middle" x="{(_LEFT + _RIGHT) / 2:.0f}" y="{y + 28}">{state}</text>'
        )
    return frame(lines, 20 + len(states) * _ROW)


def _find_ports(row: dict[str, int], moves: Collection[Move]) -> dict[Move, tuple[float, float]]:
    """Return the heights at which each move leaves its first state and reaches its second one.

    The curves at one side of a state are spread so that curves from one state do not cross.
    """
    sides: dict[tuple[str, bool], list[tuple[int, Move]]] = defaultdict(list)
    for start, end in moves:
        is_right = row[start] < row[end]
        sides[start, is_right].append((row[end] - row[start], (start, end)))
        sides[end, is_right].append((row[start] - row[end], (start, end)))
    heights: dict[tuple[str, Move], float] = {}
    for (state, _), ends in sides.items():
        # Nearest state above first, then the farthest state below: an outer curve encloses the inner ones.
        ordered = sorted(ends, key=lambda each: (each[0] > 0, -each[0]))
        for number, (_, move) in enumerate(ordered, 1):
            heights[state, move] = 20 + row[state] * _ROW + 46 * number / (len(ordered) + 1)
    return {move: (heights[move[0], move], heights[move[1], move]) for move in moves}
