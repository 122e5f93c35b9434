"""`python -m tests.system.family`: a process with a child in its group, as a worker has, that starts in no time.

It says so when both run. SIGTERM ends it and leaves the child behind.
"""

import signal
import subprocess
import sys

if __name__ == "__main__":
    subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    sys.stdout.write("both run\n")
    sys.stdout.flush()
    signal.pause()
