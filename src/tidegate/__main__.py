"""`python -m tidegate`: the same as the console script."""

from tidegate.cli import main

if __name__ == "__main__":
    main(prog_name="tidegate")
