"""What must hold for every plan, on fleets and timelines that nobody thought of."""
