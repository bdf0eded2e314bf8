"""`python -m curbstone` is the same as the `curbstone` command."""

from curbstone.cli.main import main

main()
