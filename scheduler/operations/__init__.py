"""Operations load rows, decide by the rules of `policy`, commit, and announce the change, through the interfaces of
`ports`.
"""
