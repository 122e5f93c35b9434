"""The settings of the market, the table `[market]`: how often prices and instance types are read from EC2."""

from typing import Final, Literal

from scheduler.model.validation import Document, Seconds
from workers.setting_types import Period

LINUX: Final = "Linux/UNIX"


class MarketSettings(Document):
    """Prices and instance types, which are read from EC2 for pools that use them.

    A pool uses them if an offering has `require`, or if its table `market` has `prices`, `max_price` or `spot_below`.
    """

    price_interval: Seconds = 300.0
    """Interval in which spot prices are read; 0: only by `leasehold prices refresh`."""
    catalogue_age: Period = 86400.0
    """Age at which the catalogue of instance types is read again, with the next spot prices."""
    on_demand_interval: Seconds = 0.0
    """Interval in which on-demand prices are read from AWS's Pricing API, with the spot prices; 0: they are not read,
    and come from `leasehold prices import`. The role needs the policy `prices`.
    """
    product: Literal["Linux/UNIX", "Red Hat Enterprise Linux", "SUSE Linux", "Windows"] = LINUX
    """Operating system whose prices are read, as EC2 names it in spot prices."""
    stale_after: Period = 3600.0
    """Age at which a spot price is shown as stale. It still counts."""
    stale_list_after: Period = 7776000.0
    """Age at which an on-demand price is shown as stale. It still counts."""
