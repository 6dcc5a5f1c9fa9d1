"""Where a run takes place: the profile that names services and Spark, and what a Kubernetes cluster has to say."""
