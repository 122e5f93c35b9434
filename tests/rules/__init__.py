"""Rules that must hold for every plan, on generated fleets and timelines."""
