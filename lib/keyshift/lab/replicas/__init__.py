"""A job with replicas: each is a whole job in a Spark application of its own, and the first copy of a result counts."""
