"""What keyshift costs, as ratios measured side by side in one run: ``make bench``. See docs/performance.md."""
