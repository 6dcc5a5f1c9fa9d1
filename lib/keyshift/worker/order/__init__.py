"""What a slot has to do with others, if the order of its rows comes from a leader: the order log, and who leads."""
