"""State under way between slots: it arrives, departs, is copied, and is fetched by key."""
