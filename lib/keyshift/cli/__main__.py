"""``python -m keyshift.cli``."""

from keyshift.cli import main

if __name__ == "__main__":
    main()
