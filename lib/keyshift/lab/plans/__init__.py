"""Plans for the migrations of a job, and what became of them."""
