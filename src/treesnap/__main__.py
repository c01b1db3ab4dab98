"""``python -m treesnap`` is the command line."""

from treesnap.cli.start import main

if __name__ == "__main__":
    main()
