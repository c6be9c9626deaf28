"""Which KV blocks belong to whom. Numbers of blocks only: their memory is the executor's."""
