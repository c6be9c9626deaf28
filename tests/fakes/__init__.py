"""Stand-ins for what the tests must not reach: package indexes, installers, the model hub."""
