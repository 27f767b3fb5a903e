"""`python -m dprecipe`."""

from dprecipe.cli.main import main

main()
