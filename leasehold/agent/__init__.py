"""The agent of a static pool's host: a program on the host that registers it and reports that it is online. Public
names: `HostAgent`, `HostSpec`.
"""
