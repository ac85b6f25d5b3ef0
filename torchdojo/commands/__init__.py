"""The command line: one module per command with its arguments and its run; `torchdojo.commands.main` is the table of them."""
