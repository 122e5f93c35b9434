"""The mutants that were picked by hand."""

from tests.mutations.mutant import list_mutants
from tests.mutations.of_elastic import OF_ELASTIC
from tests.mutations.of_lifecycle import OF_LIFECYCLE
from tests.mutations.of_placement import OF_PLACEMENT
from tests.mutations.of_quota import OF_QUOTA
from tests.mutations.of_replan import OF_REPLAN
from tests.mutations.of_scaling import OF_SCALING
from tests.mutations.of_state import OF_STATE

MUTANTS = tuple(
    mutant
    for changes in (OF_STATE, OF_LIFECYCLE, OF_PLACEMENT, OF_SCALING, OF_ELASTIC, OF_QUOTA, OF_REPLAN)
    for mutant in list_mutants(changes)
)
