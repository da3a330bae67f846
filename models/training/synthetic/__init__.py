"""Domains of the synthetic training data: each is a function from a random generator to one question and its answer."""
