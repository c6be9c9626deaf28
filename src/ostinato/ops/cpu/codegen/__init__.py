"""From the Python source of kernels to object files. Imports Numba: needed to compile, never to run."""
