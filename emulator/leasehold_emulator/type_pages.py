"""The catalogue of instance types in the EC2 emulator, page by page. The types and their zones are moto's own data.

moto answers with all types in one page, which takes seconds. EC2 has at most 100 types, or 1000 offerings, in a page.
"""

from collections.abc import Callable, Collection, Sequence
from fnmatch import fnmatchcase
from functools import cache
from typing import Final
from xml.sax.saxutils import escape

import msgspec
from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS, INSTANCE_TYPES
from werkzeug.wrappers import Response

from leasehold_emulator.calls import Call

TYPES: Final = "DescribeInstanceTypes"
OFFERINGS: Final = "DescribeInstanceTypeOfferings"
MOST: Final = {TYPES: 100, OFFERINGS: 1000}
_WRITTEN: Final[dict[tuple[tuple[str, ...], int | None], bytes]] = {}
"""(types of a page, index of the first type on the next page) -> the body of the answer with this page."""
_PAGING: Final = ("MaxResults", "NextToken")


def is_paged(call: Call) -> bool:
    """Return whether this module answers a call. It answers the calls for all instance types, or for the zones of all
    types, without filters; moto answers all others.
    """
    narrowed = any(key.startswith(("InstanceType.", "Filter.")) for key in call.parameters)
    return call.action in MOST and not narrowed


def answer_page(call: Call, patterns: Collection[str], forward: Callable[[Call], Response]) -> Response:
    """Return the page of the catalogue that a call requests. `patterns`: patterns of the names of the instance types in
    the catalogue; empty: the catalogue has all types. `forward`: a function that lets moto answer a call.
    """
    first, most = find_page(call, MOST[call.action])
    names = _list_names(tuple(patterns))
    if call.action == TYPES:
        return _answer_types(call, sorted(names), (first, most), forward)
    kind = call.parameters.get("LocationType", "region")
    rows = [row for row in INSTANCE_TYPE_OFFERINGS.get(kind, {}).get(call.region, []) if row["InstanceType"] in names]
    items = "".join(
        f"<item><instanceType>{escape(row['InstanceType'])}</instanceType><locationType>{escape(kind)}</locationType>"
        f"<location>{escape(row['Location'])}</location></item>"
        for row in rows[first : first + most]
    )
    body = f"<instanceTypeOfferingSet>{items}</instanceTypeOfferingSet>"
    return write_page(call.action, body, first + most if len(rows) > first + most else None)


@cache
def _list_names(patterns: tuple[str, ...]) -> frozenset[str]:
    return frozenset(
        name for name in INSTANCE_TYPES if not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)
    )


def _answer_types(
    call: Call, names: Sequence[str], page: tuple[int, int], forward: Callable[[Call], Response]
) -> Response:
    """Return a page of the instance types with these names. `page`: (index of the first type, number of types). moto
    takes long to write a page, and its types never change, so each page is kept.
    """
    first, most = page
    shown = tuple(names[first : first + most])
    following = first + most if len(names) > first + most else None
    if (shown, following) not in _WRITTEN:
        answer = add_next(forward(_naming(call, shown)), call.action, following)
        if answer.status_code != 200:  # noqa: PLR2004 - HTTP status OK
            return answer
        _WRITTEN[shown, following] = answer.get_data()
    return Response(_WRITTEN[shown, following], content_type="text/xml;charset=UTF-8")


def find_page(call: Call, most: int) -> tuple[int, int]:
    """Return (1) the index of the first entry that a call requests, and (2) the number of entries that it requests, at
    most `most`.
    """
    token, wanted = (call.parameters.get(key, "") for key in reversed(_PAGING))
    first = int(token) if token.isdecimal() else 0
    return first, min(most, int(wanted)) if wanted.isdecimal() and int(wanted) else most


def write_page(action: str, body: str, following: int | None) -> Response:
    """Return the answer to a call with the content `body`. `following`: the index of the first entry on the next page;
    None: this is the last page.
    """
    text = (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<{action}Response xmlns="http://ec2.amazonaws.com/doc/2016-11-15/">'
        f"<requestId>00000000-0000-0000-0000-000000000000</requestId>{body}</{action}Response>"
    )
    answer = Response(text, content_type="text/xml;charset=UTF-8")
    return add_next(answer, action, following)


def _naming(call: Call, names: Sequence[str]) -> Call:
    kept = {key: value for key, value in call.parameters.items() if key not in _PAGING}
    numbered = {f"InstanceType.{number}": name for number, name in enumerate(names, 1)}
    return msgspec.structs.replace(call, parameters={**kept, **numbered})


def add_next(answer: Response, action: str, following: int | None) -> Response:
    """Return the answer to a call, with the token of the next page if `following` is not None (see `write_page`)."""
    end = f"</{action}Response>"
    if following is not None:
        answer.set_data(answer.get_data(as_text=True).replace(end, f"<nextToken>{following}</nextToken>{end}"))
    return answer
