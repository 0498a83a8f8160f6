"""Serves one GGUF file on loopback with llama.cpp's own HTTP server, until it is told to end.

Run as a program by `llama_process`; prints `listening on URL` once it accepts requests.
"""

from __future__ import annotations

import argparse
import os
import signal

import xllamacpp


def main() -> None:
    """Reads the arguments, serves, waits for SIGTERM."""
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("model")
    reader.add_argument("--context", type=int, required=True, help="tokens, of all slots together")
    reader.add_argument("--slots", type=int, default=1)
    reader.add_argument("--unified", action="store_true", help="slots share one cache, and can fill it together")
    options = reader.parse_args()

    # Blocked before the server starts its threads, so that they inherit it and the signal waits for `sigwait`.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    params = xllamacpp.CommonParams()
    params.model.path = options.model
    params.n_ctx = options.context
    params.n_parallel = options.slots
    params.kv_unified = options.unified
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 2
    params.endpoint_props = True
    params.ctx_shift = False
    params.warmup = False
    server = xllamacpp.Server(params)
    print(f"listening on {server.listening_address}", flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    os._exit(0)  # the server's threads don't end by themselves


if __name__ == "__main__":
    main()
