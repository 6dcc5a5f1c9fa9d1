"""What a run leaves behind: its manifest and tables, the store that keeps them, the verdict on what was computed."""
