"""Revision 0004: a lease has the number of CPUs of its slot that it may use."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column `leases.cores`, which is NULL in every row. NULL means: the lease may use only the CPUs that it
    requested.
    """
    # The table is made again, so that the schema has the same text as in a new database.
    with op.batch_alter_table("leases", recreate="always") as leases:
        leases.add_column(sa.Column("cores", sa.Double(), nullable=True))
