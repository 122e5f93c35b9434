"""Revision 0023: an elastic lease that is revoked alone has the reason."""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

_TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Add a column that is NULL in the present rows."""
    op.add_column("leases", sa.Column("revoke_reason", _TEXT, nullable=True))
