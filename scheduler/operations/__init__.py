"""Operations of the scheduler: each loads rows, decides by the rules in `policy`, commits and announces the change.
They reach database, Redis and EC2 through the interfaces in `ports`.
"""
