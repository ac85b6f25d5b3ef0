"""What the command line does, one module per command; `torchdojo.cli` reads the arguments."""
