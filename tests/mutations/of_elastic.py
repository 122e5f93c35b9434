"""Wrong rules of elastic instances: who gets them, who gives them back, and when."""

from tests.mutations.mutant import Mutant

OF_ELASTIC = (
    Mutant(
        "cascade",
        "yielding: essential instances of anybody go before elastic ones of others, flexible: only if more is used",
        'if self.settings.elastic == "yielding":',
        "if True:",
    ),
    Mutant("cascade", "flexible admits whoever makes the use grow", "seating.use > use + MORE", "False"),
    Mutant(
        "cascade",
        "with preemption only those who rank behind give back",
        "            yield self._find_first((self._ranks[reservation.id], 0)), False",
        "            yield 0, False",
    ),
    Mutant(
        "cascade",
        "malleable and rigid take nothing back",
        '        return self.settings.elastic in {"flexible", "yielding"}',
        "        return True",
    ),
    Mutant("cascade", "what was tried in vain is undone", "        seating.undo(mark)\n", ""),
    Mutant(
        "cascade",
        "elastic instances that are in nobody's way go back",
        "                self._seating.move(seat, seat.home)",
        "                pass",
    ),
    Mutant(
        "seats",
        "instances are taken back highest index first",
        "for seat in reversed(self.seats) if seat.place",
        "for seat in self.seats if seat.place",
    ),
    Mutant(
        "seats",
        "who shrank by himself gets no more",
        "        is_unwanted = any(find_number(need.component, name) is not None for name in declined)",
        "        is_unwanted = False",
    ),
    Mutant(
        "seats",
        "a host that came back smaller gives back",
        "            if _is_overfull(place) or _lacks_a_name(place, lifted):",
        "            if False:",
    ),
    Mutant(
        "reclaim",
        "with a grace nobody is given room that somebody may still use",
        "        yield assign if is_over else self._claim(assign)",
        "        yield assign",
    ),
    Mutant(
        "reclaim",
        "what is taken back waits until the deadline",
        "            if not room.fits():",
        "            if False:",
    ),
    Mutant("losses", "an interrupted instance has until the machine goes", "else min(ends)\n", "else None\n"),
    Mutant(
        "losses", "a revoked instance ends at its deadline", "return (reason, None) if is_over else None", "return None"
    ),
    Mutant(
        "claims",
        "nobody else gets a claimed place before its time",
        "        elif all(_has_room(place, reservation) for place in places):",
        "        elif True:",
    ),
    Mutant(
        "yielding",
        "only those who are in the way give way",
        "        self._put_back()\n",
        "",
    ),
    Mutant(
        "yielding",
        "flexible: nobody gives way for nothing",
        "or not self._is_worth_it():",
        "or False:",
    ),
    Mutant(
        "yielding",
        "with a grace the newcomer claims the place",
        "    if revoke_by is None or not gone:",
        "    if True:",
    ),
    Mutant(
        "rounds", "what this tick has assigned is gone", "for lease in staying), *given])", "for lease in staying)])"
    ),
    Mutant(
        "reclaim",
        "instances of one component are granted lowest index first",
        "component=self._take_name(seat.group)",
        "component=seat.instance.name",
    ),
    Mutant(
        "seats",
        "a resource that a host no longer names counts as 0",
        " or _lacks_a_name(place, lifted):",
        ":",
    ),
)
