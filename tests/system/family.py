"""`python -m tests.system.family`: a process that starts fast and has a child in its group, as a worker has.

It prints a line when both run. SIGTERM ends it, but not its child.
"""

import signal
import subprocess
import sys

if __name__ == "__main__":
    subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    sys.stdout.write("both run\n")
    sys.stdout.flush()
    signal.pause()
