"""A slot in Spark: it drives ``runtime.slot`` from several threads."""
