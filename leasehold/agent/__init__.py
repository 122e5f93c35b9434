"""The agent of a host of a static pool. Public names: `HostAgent`, `HostSpec`."""
