"""Revision 0016: a launch back-off has the code and the message of the refusal, and a slot has its last refusal."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

_TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Add columns without a known code, message or refusal. The columns of `holds` keep their default, so that a
    process of the version before can still insert rows during a rolling upgrade.
    """
    op.add_column("holds", sa.Column("code", _TEXT, nullable=False, server_default=""))
    op.add_column("holds", sa.Column("message", _TEXT, nullable=False, server_default=""))
    op.add_column("slots", sa.Column("refusal", _TEXT, nullable=True))
