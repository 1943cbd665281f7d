"""A Lode server for measurements, on a temporary folder."""

import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.request


class Server:
    def __init__(self, lode, below=None, worker=False, environment=None, seconds=20):
        self.lode = lode
        self.scratch = tempfile.mkdtemp(prefix="lode-bench-", dir=below)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = "127.0.0.1:%d" % free.getsockname()[1]
        self.environment = {**os.environ, "LODE_HOST": f"http://{address}", "HOME": self.scratch, "NO_PROXY": "*",
                            "TMPDIR": self.scratch, **(environment or {})}
        serve = [lode, "serve", *([] if worker else ["--no-worker"]), "--listen", address, "--data", self.scratch + "/data"]
        self.log = open(self.scratch + "/log", "w")
        self.process = subprocess.Popen(serve, stdout=self.log, stderr=self.log, env=self.environment)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        for _ in range(10 * seconds):
            try:
                opener.open(f"http://{address}/readyz")
                return
            except OSError:
                if self.process.poll() is not None:
                    break
                time.sleep(0.1)
        with open(self.scratch + "/log") as log:
            text = log.read()
        self.__exit__()
        raise SystemExit(text)

    def run(self, *arguments):
        """Runs a lode command and returns its seconds."""
        start = time.perf_counter()
        done = subprocess.run([self.lode, *map(str, arguments)], env=self.environment, capture_output=True, text=True)
        took = time.perf_counter() - start
        if done.returncode != 0:
            raise SystemExit(f"lode {arguments}: {done.stderr}")
        return took

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()
        self.log.close()
        shutil.rmtree(self.scratch)
