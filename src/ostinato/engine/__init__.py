"""Requests in, tokens out, step by step. Token ids only: never text, never JSON."""
