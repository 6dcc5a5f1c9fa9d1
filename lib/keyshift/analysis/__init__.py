"""Numbers, figures and sentences from stored results; knows tables only, no service and no engine."""
