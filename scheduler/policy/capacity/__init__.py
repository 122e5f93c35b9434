"""What fits where: the rule of capacity, slots as a scheduling cycle sees them, the requests of reservations, and the
indexes that find a slot for a request.
"""
