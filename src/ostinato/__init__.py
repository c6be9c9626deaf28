"""Ostinato: a language-model runtime in pure Python, and a laboratory for its latency and price."""

__version__ = "0.1.0"
