"""Experiments: what a run is, how one takes place, and many of them."""
