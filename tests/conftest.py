"""Being here puts this folder on the import path: tests of every tier can import from `fakes`."""
