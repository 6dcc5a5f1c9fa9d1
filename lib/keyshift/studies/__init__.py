"""Many runs: notebooks, batches, the points of a study."""
