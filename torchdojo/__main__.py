"""``python -m torchdojo`` is the command ``torchdojo``."""

import sys

from torchdojo.commands.main import main

sys.exit(main())
