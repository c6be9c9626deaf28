"""`python -m ostinato` is `ostinato`."""

from ostinato.cli.app import main

main()
