"""Which names, ids, tags and regions EC2 accepts, for warnings about a configuration before it is used. No call to AWS.

Sources: EC2's API reference (CreateLaunchTemplate, CreateKeyPair, RunInstances); "Tag your Amazon EC2 resources"; IAM's
CreateInstanceProfile; "Amazon EC2 Mac instances".
"""

import os
import re
from collections.abc import Iterator
from functools import cache
from typing import Final

from scheduler.model.machines import Ec2Rules, is_source
from scheduler.model.pools import Pool
from scheduler.model.rules import Rules
from scheduler.model.validation import Fault, show, suggest
from workers.ec2.requests import (
    TAG_CLUSTER,
    TAG_CLUSTER_ID,
    TAG_HIGHEST,
    TAG_LAUNCH,
    TAG_OFFERING,
    TAG_POOL,
    TAG_SLOT,
)
from workers.ec2.templates import describe_template
from workers.settings import AwsSettings

MOST_TAGS: Final = 50
"""The most tags of one machine."""
OUR_TAGS: Final = (TAG_CLUSTER, TAG_POOL, TAG_SLOT, TAG_LAUNCH, TAG_OFFERING, TAG_CLUSTER_ID, TAG_HIGHEST)
"""The tags that a machine has in addition to those of its pool."""
MOST_TEMPLATE_NAME: Final = 128
MOST_KEY: Final = 128
MOST_KEY_NAME: Final = 255
_TEMPLATE_NAME: Final = re.compile(r"[a-zA-Z0-9().\-/_]{3,128}")
_WANTED_NAME: Final = "3 to 128 letters, digits and ().-/_"
_PROFILE: Final = re.compile(r"[\w+=,.@-]{1,128}|arn:aws[a-z-]*:iam::\d{12}:instance-profile/[\w+=,.@/-]+", re.ASCII)
_MAC: Final = re.compile(r"mac(?:\d|-)")


@cache
def list_regions() -> tuple[str, ...]:
    """Return the names of all regions with EC2 that the installed version of botocore knows."""
    # This import takes long, and only a configuration with a region of AWS needs it.
    import botocore.session  # noqa: PLC0415 - see above

    # The names do not depend on the user's profile (AWS_PROFILE) and files, which may be missing or broken.
    files = dict.fromkeys(("config_file", "credentials_file"), (None, None, os.devnull, None))
    session = botocore.session.Session(session_vars={"profile": (None, None, None, None), **files})
    partitions = session.get_available_partitions()
    return tuple(sorted(each for one in partitions for each in session.get_available_regions("ec2", one)))


def find_refused(rules: Rules, aws: AwsSettings) -> Iterator[Fault]:
    """Yield a warning for each setting and each rule of `leasehold.toml` that EC2 will refuse."""
    pools = {name: pool for name, pool in rules.pools.items() if pool.is_elastic}
    # Another endpoint than AWS's may have regions of its own.
    if aws.region is not None and aws.endpoint_url is None and aws.region not in list_regions():
        yield Fault("aws.region", f"a region of AWS{suggest(aws.region, list_regions())}", show(aws.region))
    # The name of a launch template that Leasehold makes contains that of the cluster.
    templates = (each for each in pools.values() if each.ec2.launch_template is None and each.ec2.image)
    if (made := next((each for each in templates if each.offerings), None)) is not None:
        yield from _check_cluster(aws.cluster, made)
    for name, pool in pools.items():
        yield from _check_ids(f"pools.{name}.ec2", pool.ec2)
        yield from _check_tags(f"pools.{name}.ec2.tags", pool.ec2.tags)
        for index, offering in enumerate(pool.offerings):
            if offering.require is None and _MAC.match(offering.instance_type):
                wanted = "a type that needs no dedicated host (Leasehold launches no Mac machines)"
                yield Fault(f"pools.{name}.offerings[{index}].type", wanted, show(offering.instance_type))


def _check_cluster(cluster: str, pool: Pool) -> Iterator[Fault]:
    name = str(describe_template(pool, cluster, {}, {})["LaunchTemplateName"])
    if not _TEMPLATE_NAME.fullmatch(name):
        most = MOST_TEMPLATE_NAME - (len(name) - len(cluster))
        yield Fault(
            "aws.cluster",
            f"at most {most} letters, digits and ().-/_ (it is a part of the names of launch templates)",
            show(cluster),
        )


def _check_ids(path: str, ec2: Ec2Rules) -> Iterator[Fault]:
    template = ec2.launch_template
    if template is not None and template.startswith("lt-"):
        yield from _check_id(f"{path}.launch_template", "lt", template)
    elif template is not None and not _TEMPLATE_NAME.fullmatch(template):
        yield Fault(f"{path}.launch_template", f"an id (lt-…) or a name of {_WANTED_NAME}", show(template))
    if ec2.image is not None and not is_source(ec2.image):
        yield from _check_id(f"{path}.image", "ami", ec2.image)
    for index, subnet in enumerate(ec2.subnets):
        yield from _check_id(f"{path}.subnets[{index}]", "subnet", subnet.rpartition(":")[2])
    for index, group in enumerate(ec2.security_groups):
        yield from _check_id(f"{path}.security_groups[{index}]", "sg", group)
    if ec2.key_name is not None and (len(ec2.key_name) > MOST_KEY_NAME or not ec2.key_name.isascii()):
        yield Fault(f"{path}.key_name", f"at most {MOST_KEY_NAME} ASCII characters", show(ec2.key_name))
    if ec2.instance_profile is not None and not _PROFILE.fullmatch(ec2.instance_profile):
        yield Fault(
            f"{path}.instance_profile",
            "the name or the ARN (arn:aws:iam::…:instance-profile/…) of an instance profile",
            show(ec2.instance_profile),
        )


def _check_id(path: str, kind: str, value: str) -> Iterator[Fault]:
    if not re.fullmatch(rf"{kind}-(?:[0-9a-f]{{8}}|[0-9a-f]{{17}})", value):
        yield Fault(path, f"{kind}- with 8 or 17 hexadecimal digits", show(value))


def _check_tags(path: str, tags: dict[str, str]) -> Iterator[Fault]:
    most = MOST_TAGS - len(OUR_TAGS)
    if len(tags) > most:
        yield Fault(
            path,
            f"at most {most} tags (EC2 permits {MOST_TAGS}, and {len(OUR_TAGS)} are of Leasehold)",
            f"{len(tags)} of them",
        )
    for key in tags:
        if key.lower().startswith("aws:"):
            yield Fault(f"{path}.{key}", "a tag that does not begin with aws: (these are of AWS)", show(key))
        elif len(key) > MOST_KEY:
            yield Fault(f"{path}.{key}", f"a name of at most {MOST_KEY} characters", f"{len(key)} of them")
