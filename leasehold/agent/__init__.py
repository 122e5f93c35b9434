"""The agent that runs on a host of a static pool. Public names: `HostAgent`, `HostSpec`."""
