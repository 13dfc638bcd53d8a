"""Forking a conversation at a step: a plan of its causal past, the files of that moment, a conversation that knows no more."""
