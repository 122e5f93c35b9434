"""User data: the script that a machine runs when it boots. It is made from a template of the pool and is not secret."""

from collections.abc import Mapping
from importlib.resources import files
from math import ceil
from string import Template
from typing import Final

from scheduler.model.pools import Pool, offering_key
from scheduler.model.validation import fault
from scheduler.ports import LaunchOrder
from scheduler.protocol.join_tokens import TOKEN_PLACE, TOKEN_VARIABLE

MOST_BYTES: Final = 16_384
"""EC2's limit for the size of user data in bytes, before base64."""

VARIABLES: Final[Mapping[str, str]] = {
    "cluster": "the cluster that the machine belongs to",
    "pool": "its pool",
    "system": "the pool's system",
    "slot": "its slot",
    "launch_id": "the id of this launch; also the tag `leasehold:launch`",
    "offering": "key of its offering; empty in a pool that lists none",
    "market": "`spot` or `on-demand`",
    "region": "the EC2 region",
    "boot_seconds": "the pool's `boot_timeout` and `binding_timeout` together, in whole seconds",
    "silence_seconds": "the pool's `self_end_after` in whole seconds; `0` = off",
    "cluster_id": "the identity of the cluster, which `leasehold host join` needs",
    "join_url": "the setting `access.join_url`, which `leasehold host join` needs; empty if it is not set",
    "join_token": "the join token of the launch; empty in a pool with an instance profile or without agents",
}
"""Name of a variable in a user data template → the meaning of the value that replaces it."""

AGENT_TEMPLATE: Final = """#!/bin/sh
exec leasehold host join "${join_url}" --cluster "${cluster_id}" --region "${region}"
"""
"""User data of a pool with agents that names none, if its machines have an instance profile. The image needs
`leasehold[agent]`.
"""
TOKEN_TEMPLATE: Final = f"""#!/bin/sh
export {TOKEN_VARIABLE}="${{join_token}}"
exec leasehold host join "${{join_url}}" --cluster "${{cluster_id}}"
"""
"""As AGENT_TEMPLATE, if its machines have none. The token is no argument, which every user of the machine could see."""


def example_template() -> str:
    """Return the example template of user data: a boot script that records which machine it runs on, and starts a
    watchdog that powers the machine off after a long silence.
    """
    return files("workers.ec2").joinpath("user_data.sh.tmpl").read_text(encoding="utf-8")


def find_template(pool: Pool) -> str | None:
    """Return the template of the user data of a pool: its own, or the one that starts the agent, if the pool has agents
    and its launch template has no user data of its own. None: its machines get no user data.
    """
    if pool.ec2.user_data is None and pool.agent and pool.ec2.launch_template is None:
        return TOKEN_TEMPLATE if pool.joins_by_token else AGENT_TEMPLATE
    return pool.ec2.user_data


def variables_of(
    order: LaunchOrder, pool: Pool, cluster: str, region: str, join_url: str | None = None
) -> dict[str, str]:
    offering = pool.offering_by_key[order.offering] if order.offering else None
    return {
        "cluster": cluster,
        "pool": order.pool,
        "system": pool.system,
        "slot": order.slot,
        "launch_id": order.launch_id,
        "offering": offering_key(pool, offering) if offering else "",
        "market": offering.market if offering else "spot",
        "region": region,
        "boot_seconds": str(ceil(pool.boot_timeout + pool.binding_timeout)),
        "silence_seconds": str(ceil(pool.self_end_after)),
        "cluster_id": order.cluster_id,
        "join_url": join_url or "",
        "join_token": TOKEN_PLACE if pool.joins_by_token else "",
    }


def render_user_data(template: str, values: Mapping[str, str], path: str = "user_data") -> str:
    """Return the user data: the template with each `$name` or `${name}` replaced by its value. `$$` becomes a dollar
    sign.

    Raises InvalidInputError in three cases: the template has an unknown variable, it has a `$` that is neither doubled
    nor before a name, or the result is longer than EC2 allows. `path`: the key that the error names.
    """
    try:
        text = Template(template).substitute(values)
    except KeyError as unknown:
        known = ", ".join(VARIABLES)
        raise fault(path, f"only the variables {known}", f"${{{unknown.args[0]}}}") from None
    except ValueError as error:
        raise fault(path, "`$$` for a dollar sign without a variable", str(error)) from None
    if (size := len(text.encode())) > MOST_BYTES:
        raise fault(path, f"at most {MOST_BYTES} bytes after its variables are replaced", size)
    return text
