"""Where a run takes place: the profile that names services and Spark, the image, and executors in Kubernetes."""
