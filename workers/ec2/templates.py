"""The launch templates that Leasehold makes for pools with an image, so that CreateFleet can launch their machines.

The name of a template contains a hash of its content, and a template has only one version. So a template never changes:
other content makes another template, and a request that was stored earlier still launches the same machines.
"""

import hashlib
import json
from typing import Any, Final

from scheduler.model.pools import Pool

NOT_FOUND: Final = "InvalidLaunchTemplateName.NotFoundException"
EXISTS: Final = "InvalidLaunchTemplateName.AlreadyExistsException"


def describe_template(pool: Pool, cluster: str, common: dict[str, Any], tags: dict[str, str]) -> dict[str, Any]:
    """Return the launch template for a pool with an image, as the parameters of CreateLaunchTemplate.

    `common`: the parameters of the pool that a template and RunInstances have in common. `tags`: the tags of the
    template itself. The name contains the cluster and the first 16 digits of the content's SHA-256.
    """
    content = {
        "ImageId": pool.ec2.image,
        "InstanceInitiatedShutdownBehavior": "terminate",
        **({"SecurityGroupIds": list(pool.ec2.security_groups)} if pool.ec2.security_groups else {}),
        **common,
    }
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
    return {
        "LaunchTemplateName": f"leasehold-{cluster}-{digest}",
        "LaunchTemplateData": content,
        "TagSpecifications": [
            {
                "ResourceType": "launch-template",
                "Tags": [{"Key": key, "Value": value} for key, value in tags.items()],
            }
        ],
    }
