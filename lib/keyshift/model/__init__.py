"""The vocabulary: keys, frames, records, errors. Read first."""
