"""What happens in an execution while its load is offered."""
