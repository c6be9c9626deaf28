"""Being here puts this folder on the import path: tests of every tier can import from `fakes`.

Property tests draw the same examples in every run.
"""

from hypothesis import settings

settings.register_profile("fixed", derandomize=True, deadline=None, database=None)
settings.load_profile("fixed")
