"""The operations of the scheduler. Each one loads rows, decides by the rules in `policy`, commits the change and
announces it. Operations use the database, Redis and EC2 through the interfaces in `ports`.
"""
