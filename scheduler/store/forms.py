"""SQL statements as a driver takes them, for connections that pass SQLAlchemy's statements to the driver directly.

Speed: SQLAlchemy's own connection runs several times as much code for each transaction and each statement. After a
pause of some milliseconds, no cache of the processor contains that code any more. The code then takes four to seven
times as long as when it runs in a loop. Here SQLAlchemy only compiles each statement once. No value and no result needs
a conversion by SQLAlchemy: the columns of the database are texts and numbers, and flags are read as numbers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, cast
from weakref import WeakKeyDictionary

from sqlalchemy import ClauseElement, Executable
from sqlalchemy.engine import Dialect
from sqlalchemy.sql.compiler import SQLCompiler

MOST_IDLE: Final = 5
"""The most connections without a transaction that a process keeps open for later transactions."""
NO_VALUES: Final[Mapping[str, object]] = {}


@dataclass(eq=False, slots=True)
class Form:
    """A compiled SQL statement as the driver takes it. `text`: the SQL; `names`: the names of its parameters in order;
    `own`: name -> value of the parameters whose values are a part of the statement.
    """

    text: str
    names: tuple[str, ...]
    own: Mapping[str, object]
    uses: int = 0

    def list_values(self, values: Mapping[str, object]) -> list[object]:
        """Return the values of all parameters in order."""
        given = {**self.own, **values} if self.own else values
        return [given[name] for name in self.names]


class Forms:
    """The compiled statements that the connections of one process have executed. Thread-safe."""

    def __init__(self, dialect: Dialect) -> None:
        """Compile for this SQLAlchemy dialect, whose parameters have positions."""
        self._dialect = dialect
        self._forms: WeakKeyDictionary[Executable, Form] = WeakKeyDictionary()

    def find(self, statement: Executable, values: Mapping[str, object]) -> Form:
        """Return the compiled SQL of a statement, from a cache. `values`: the parameters, of which only the names
        matter. The cache is keyed by the statement alone, so a statement must always be executed with parameters of the
        same names.
        """
        form = self._forms.get(statement)
        if form is None:
            form = self._forms[statement] = self._make(statement, values)
        return form

    def _make(self, statement: Executable, values: Mapping[str, object]) -> Form:
        element = cast("ClauseElement", statement)
        compiled = cast("SQLCompiler", element.compile(dialect=self._dialect, column_keys=[*values]))
        # The lists of IN get a place for each of their values, which are a part of the statement.
        state = compiled.construct_expanded_state(dict(values))
        own = {name: value for name, value in state.parameters.items() if name not in values}
        return Form(state.statement, tuple(state.positiontup or ()), own)
