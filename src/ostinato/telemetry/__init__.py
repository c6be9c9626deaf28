"""When things happened, and what follows from it. A leaf: knows nothing of models, tokens or text."""
