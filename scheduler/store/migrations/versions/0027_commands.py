"""Revision 0027: commands on leases: rights of principals, the commands of reservations, and their runs."""

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None

_TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Add the columns and the tables. No principal has the right to submit commands before it is granted."""
    op.add_column("principals", sa.Column("rights", _TEXT, server_default="[]", nullable=False))
    op.add_column("reservations", sa.Column("run", _TEXT, nullable=True))
    op.create_table(
        "commands",
        sa.Column("reservation", _TEXT, nullable=False),
        sa.Column("document", _TEXT, nullable=False),
        sa.PrimaryKeyConstraint("reservation"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "executions",
        sa.Column("reservation", _TEXT, nullable=False),
        sa.Column("token", sa.BigInteger(), nullable=False),
        sa.Column("component", _TEXT, nullable=False),
        sa.Column("slot", _TEXT, nullable=False),
        sa.Column("machine", _TEXT, nullable=False),
        sa.Column("run", _TEXT, nullable=False),
        sa.Column("state", _TEXT, nullable=False),
        sa.Column("taken_at", sa.Double(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.Column("exit_code", sa.BigInteger(), nullable=True),
        sa.Column("signal", sa.BigInteger(), nullable=True),
        sa.Column("why", _TEXT, nullable=True),
        sa.Column("error", _TEXT, nullable=True),
        sa.Column("tail", _TEXT, nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("reservation", "token", "component"),
    )
