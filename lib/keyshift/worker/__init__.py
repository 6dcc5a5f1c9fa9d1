"""Code that runs in the Python workers of Spark: routers, slots, and the state that moves between them."""
