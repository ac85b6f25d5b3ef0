"""What the command line does, one module per command; `torchdojo.commands.main` reads the arguments."""
