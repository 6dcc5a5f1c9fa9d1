"""``make soak``: a live job for hours, with faults and migrations, and whether anything of it grows."""
