"""What an experiment is: its parameters, and what happens in it."""
