"""Runs a command next to Horovod's rendezvous server, which horovodrun starts otherwise."""

import os
import subprocess
import sys
import threading

from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

address = ("", int(os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"]))
server = RendezvousHTTPServer(address, RendezvousHandler, verbose=0)
threading.Thread(target=server.serve_forever, daemon=True).start()
sys.exit(subprocess.call(sys.argv[1:]))
