"""From a row of logits to one token id.

`params.py` holds what a request may ask for, `history.py` the tokens it has seen, `processors.py` changes
logits, `filters.py` turns them into weights, cuts the tail and draws, `philox.py` makes the random number,
`sampler.py` joins them. Nothing is imported here: `params.py` needs only the standard library, and a command
line that reads it must not wait for NumPy.
"""
