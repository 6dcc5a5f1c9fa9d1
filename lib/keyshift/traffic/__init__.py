"""What goes into a system under test and what comes out of it: topics, and the generator and collector processes."""
