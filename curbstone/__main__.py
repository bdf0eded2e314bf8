"""`python -m curbstone` is the same as the `curbstone` command."""

from curbstone.cli import main

main()
