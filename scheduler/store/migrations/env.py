"""Alembic's entry point: it runs the schema revisions on the connection that `scheduler.store.migrating` has opened."""

from alembic import context

from scheduler.store.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    # The caller has begun one transaction for all revisions, so the schema is either the new or the old one.
    transaction_per_migration=False,
)
context.run_migrations()
