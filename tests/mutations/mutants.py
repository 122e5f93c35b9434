"""The wrong rules: each a small change of one source file in `scheduler/policy/`."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """`old` stands exactly once in the module; `rule` says what is broken by `new`."""

    module: str
    rule: str
    old: str
    new: str


MUTANTS = (
    Mutant(
        "draft",
        "what is due at this very instant is due",
        "        if self.now >= instant:",
        "        if self.now > instant:",
    ),
    Mutant(
        "draft",
        "idle and offline limits are strict",
        "        if self.now - start > limit:",
        "        if self.now - start >= limit:",
    ),
    Mutant(
        "draft",
        "of two codes the first in the contract's order is told",
        "if known is None or _RANK_OF_CODE[code] <= _RANK_OF_CODE[known[0]]:",
        "if True:",
    ),
    Mutant("expire", "an expired one gives back what it holds", "        draft.end(reservation)", "        pass"),
    Mutant(
        "heal",
        "every state has a timeout of its own",
        "draft.is_due(since + pool.boot_timeout)",
        "draft.is_due(since + pool.launch_timeout)",
    ),
    Mutant(
        "heal",
        "an interrupted slot takes no leases",
        '        draft.decide(Drain(slot=place.slot.id, reason="interrupted"))\n        place.state = "draining"',
        '        draft.decide(Drain(slot=place.slot.id, reason="interrupted"))\n        place.stuck = False',
    ),
    Mutant(
        "heal",
        "a grace never outlasts the machine",
        "    return min(ends)\n",
        "    return max(ends)\n",
    ),
    Mutant(
        "heal",
        "`on_interruption: fail` fails",
        'if reservation.request.on_interruption == "fail":',
        'if reservation.request.on_interruption == "never":',
    ),
    Mutant(
        "heal",
        "the first restart does not wait for the delay, later ones do",
        "return last is None or draft.is_past(last, draft.settings_of(reservation).restart_delay)",
        "return True",
    ),
    Mutant(
        "heal",
        "a cool-down ends",
        'draft.decide(Reset(slot=place.slot.id, reason="cooled_down"))\n            place.state = "empty"',
        'draft.decide(Reset(slot=place.slot.id, reason="cooled_down"))',
    ),
    Mutant("plan", "the step heal", "    heal(draft)  #", "    #"),
    Mutant("plan", "the step keep", "    keep(draft, limits)  #", "    #"),
    Mutant("plan", "the step shrink", "    shrink(draft)  #", "    #"),
    Mutant("plan", "the step wake", "    wake(draft)  #", "    #"),
    Mutant(
        "order",
        "higher priorities first",
        "return -reservation.priority",
        "return reservation.priority",
    ),
    Mutant(
        "draft",
        "who returns to the queue keeps the place of its age",
        'attrgetter("created_at", "sequence")',
        'attrgetter("changed_at", "sequence")',
    ),
    Mutant(
        "order",
        "dynsize: who has come to 0 is ranked by age, not by how long it is past that",
        "            return 0.0\n        return max(LEAST_SIZE, size",
        "            pass\n        return (size",
    ),
    Mutant("order", "dynsize: all instances of a component count", "(each.count, given_to", "(1, given_to"),
    Mutant(
        "lines",
        "pack: the fullest first",
        "if self.spreads else -leases",
        "if self.spreads else leases",
    ),
    Mutant(
        "lines",
        "no lease is given beyond those allowed on a slot",
        "self.load < self.most and",
        "self.load <= self.most and",
    ),
    Mutant(
        "lines",
        "spread: the emptiest first",
        "(leases if self.spreads",
        "(-leases if self.spreads",
    ),
    Mutant(
        "rooms",
        "what one who declined slots did not find says nothing of others",
        "if not demand.declined and (len",
        "if (len",
    ),
    Mutant(
        "recall",
        "a plan is not kept beyond what falls due",
        "inf if outcome.wake_at is None else outcome.wake_at",
        "inf",
    ),
    Mutant(
        "recall",
        "a plan is not kept beyond the next one whom the starvation guard protects",
        "min([falls_due, *_list_protections(view, rules, now)])",
        "falls_due",
    ),
    Mutant(
        "draft",
        "what ended on a slot in this tick is looked after in it",
        "self.now)\n                self.note_restless(",
        "self.now)\n                (",
    ),
    Mutant(
        "guard",
        "no longer guard than it is due",
        "reservation.created_at <= limit",
        "reservation.created_at < limit",
    ),
    Mutant(
        "guard",
        "who has waited for too long is protected, though a younger one like it was not",
        "        return is_young or _kind_of(demand) in self._looked_after",
        "        return True",
    ),
    Mutant("guard", "only slots that could serve it are kept", " and _could_hold(needs, place)]", "]"),
    Mutant(
        "guard",
        "a slot that its holder declined is not kept for it",
        "if place.slot.id not in demand.declined and",
        "if",
    ),
    Mutant(
        "guard",
        "one that has room on its way is protected whatever holds launches back",
        "if is_covered or not self._waits_otherwise(demand):",
        "if not self._waits_otherwise(demand):",
    ),
    Mutant(
        "places",
        "no more leases on a slot than allowed",
        "self.load < self.pool.lease_limit",
        "self.load <= self.pool.lease_limit",
    ),
    Mutant(
        "limits",
        "no more active slots than `max_slots`",
        "if self._count(pools) >= most:",
        "if self._count(pools) > most:",
    ),
    Mutant(
        "limits",
        "no more active slots over all pools",
        "        if rules.scheduler.max_slots:\n            yield",
        "        if False:\n            yield",
    ),
    Mutant("limits", "the first empty slot first", "for p in reversed(places)", "for p in places"),
    Mutant(
        "limits",
        "the first launch after a quota hold goes alone",
        "return self.may_probe(name, market) and self._is_probed(name, market)",
        "return False",
    ),
    Mutant(
        "limits",
        "a quota hold ends with fewer active slots",
        "self._active_at_first[name] < hold.active",
        "self._active_at_first[name] > hold.active",
    ),
    Mutant(
        "keep",
        "the reserve is what nobody waits for",
        "place.is_coming and not place.wanted",
        "place.is_coming",
    ),
    Mutant(
        "keep",
        "no more than the minimum",
        "pool.min_slots - count_serving(places)",
        "pool.min_slots + 1 - count_serving(places)",
    ),
    Mutant(
        "shrink",
        "longest idle first",
        "return (place.idle_since, place.order)",
        "return (0.0, place.order)",
    ),
    Mutant(
        "shrink",
        "never below the warm target",
        "spare = min(count_serving(places) - pool.min_slots, count_reserve(places) - pool.target_warm_slots)",
        "spare = count_serving(places) - pool.min_slots",
    ),
    Mutant(
        "release",
        "those in flight go before ready ones",
        "(not place.is_coming, place.idle_rank, place.order)",
        "(place.is_coming, place.idle_rank, place.order)",
    ),
    Mutant(
        "release",
        "what drains already counts as room being made",
        'sum(place.state in {"draining", "terminating"} for place in places)',
        "0",
    ),
    Mutant(
        "fitness",
        "a slot whose offering is no longer configured drains",
        "    if slot.offering is not None and not is_configured(slot, pool):\n        return",
        "    if False:\n        return",
    ),
    Mutant(
        "lines",
        "no more leases on a machine than `max_uses`",
        "before.uses_left - 1",
        "before.uses_left",
    ),
    Mutant(
        "confirming",
        "a slot that nobody confirms on is noticed",
        "            place.unconfirmed += 1",
        "            place.unconfirmed += 0",
    ),
    Mutant(
        "places",
        "idle from the end of the last lease on",
        "        self.idle_since = now\n",
        "",
    ),
    Mutant(
        "places",
        "a cordoned slot serves nobody",
        '(self.state == "ready" or self.is_coming) and not self.slot.cordoned',
        '(self.state == "ready" or self.is_coming)',
    ),
    Mutant(
        "place",
        "without backfill the first that waits ends the placing",
        "    blocked[demand.queue] = is_gang\n",
        "",
    ),
    Mutant(
        "place",
        "only those who have their pools for themselves are placed in one go",
        "all(uses[name] == 1 for name in demand.pools)",
        "True",
    ),
    Mutant(
        "place",
        "a replacement is launched while the holder has its grace",
        ", _cover_returning(draft, search)\n",
        ", list[Reservation]()\n",
    ),
    Mutant("launch", "what cannot be launched whole launches nothing", "        opening.undo()\n", ""),
    Mutant(
        "place",
        "without backfill those behind a gang keep no room from it",
        "is_gang=not is_covered and len(demand.needs) > 1",
        "is_gang=False",
    ),
    Mutant("charging", "what is above the cap stays", " if paid < cap else paid", ""),
    Mutant("relevel", "up to 600 saved a lease keeps its level", "SAVED: Final = 600.0", "SAVED: Final = 599.0"),
    Mutant(
        "relevel",
        "down to -600 overdrawn a lease keeps its level",
        "OVERDRAWN: Final = -600.0",
        "OVERDRAWN: Final = -599.0",
    ),
    Mutant(
        "preempt", "who has worse work running preempts nobody", "        if not barred[name]:\n", "        if True:\n"
    ),
    Mutant("preempt", "only worse levels are preempted", "run.level > level and", "run.level >= level and"),
    Mutant("fanout", "max_fanout itself is reached", "0 < account.max_fanout <= self", "0 < account.max_fanout < self"),
    Mutant("fanout", "a limit by label itself may be reached", "> limits[name]", ">= limits[name]"),
    Mutant(
        "quota", "those who prefer a slot come before others", "level, preferring=True)", "level, preferring=False)"
    ),
    Mutant("quota", "who has claimed a place gets it", "    assign_claims(tick, claimants)\n", ""),
    Mutant("ttl", "an own ttl of 0 means never", "if request.ttl is not None:", "if request.ttl:"),
    Mutant("ttl", "the first pool that serves its system", "rules.pools[names[0]]", "rules.pools[names[-1]]"),
    Mutant("offerings", "the price factor is inclusive", "choice.price <= most", "choice.price < most"),
    Mutant(
        "offerings",
        "at the same price more memory first",
        '-held.get("memory_mib", 0)',
        'held.get("memory_mib", 0)',
    ),
    Mutant(
        "limits",
        "machines that no slot knows count towards max_slots",
        "        return 0 if hold is None or self._draft.is_due(hold.until) else hold.active",
        "        return 0",
    ),
    Mutant(
        "limits",
        "after boots that failed in a row one machine is tried alone",
        "any(place.is_coming for place in self._draft.pools[name])",
        "False",
    ),
    Mutant(
        "limits",
        "the boot that makes it enough holds its pool at once",
        "        streak = (hold.streak if hold else 0) + len(failed_now)",
        "        streak = hold.streak if hold else 0",
    ),
    Mutant(
        "forecast",
        "an account that keeps nothing of what it earns cannot pay again",
        "account.charge_rate[level] * account.max_charge_seconds <= 0",
        "account.charge_rate[level] <= 0",
    ),
    Mutant("forecast", "what runs slows down what an account earns", " - found.use[level]\n", "\n"),
    Mutant(
        "changes_of_accounts",
        "a balance is asked for at a level at which the account earns",
        "(each not in earned, -each)",
        "-each",
    ),
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
        "        if lease is not None or need not in unwanted:",
        "        if True:",
    ),
    Mutant(
        "seats",
        "a host that came back smaller gives back",
        "            if _is_overfull(place):",
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
        "launch",
        "what is on its way is set against elastic instances first",
        "fill(demand, [*there, draft.launched], opening.launch) is None",
        "fill(demand, [draft.launched], opening.launch) is None",
    ),
    Mutant(
        "share",
        "a slot that is smaller than its leases takes nothing from them",
        "if left > 0 and ",
        "if ",
    ),
    Mutant("share", "spare cores are divided among the leases", "left / len(owns) if", "left if"),
    Mutant(
        "share", "what nobody shares stays unshared", "(slot.pool, None).share_cores", '(slot.pool, None).queue != ""'
    ),
    Mutant("share", "who only claims a place has no part yet", 'if lease.state != "claimed" and owner', "if owner"),
    Mutant("share", "who goes in this tick counts no more", "owner not in moves.gone and ", ""),
    Mutant("share", "a single instance that goes leaves its part", " and (owner, component) not in moves.parted", ""),
    Mutant(
        "share", "who comes in this tick counts", "moves.list_left(draft).union(arrivals)", "moves.list_left(draft)"
    ),
    Mutant(
        "launch",
        "elastic instances of who waits launch only where machines are all that he waits for",
        '(waits is not None and waits[0] != "booting")',
        "False",
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
)
