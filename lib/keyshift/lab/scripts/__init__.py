"""What happens in a run while its load is offered."""
