"""Parse untrusted HTML in a process that may die of it.

`TrialProcess` runs this module as a script, one per process of ours. The script forks for each page: a fork that
exceeds its limits of time and memory dies alone. It has one thread and imports nothing of the package, so that it
starts in 20 ms, takes 13 MB and forks quickly.
"""

import atexit
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
from enum import Enum, auto
from importlib import import_module
from pathlib import Path
from threading import Lock

MAX_CPU_SECONDS = 0.6  # the largest of our samples, 2 MB, takes 0.02
MAX_MEMORY_BYTES = 125_000_000  # of one page and its tree; 300,000 paragraphs take 100 MB
# Browsers nest no deeper than 512 elements, and real pages stay below 100. Pages written by hand reach
# more where each paragraph leaves a `<b>` open.
MAX_DEPTH = 2_048
# Ancestors over all elements: a selector takes up to 4 ns for each. 300,000 elements at a depth of 30 have 9 million.
MAX_ANCESTORS = 50_000_000

_TIMEOUT_SECONDS = 60.0  # of 0.6 CPU seconds on a machine that is overloaded a hundredfold
_LENGTH = struct.Struct("!Q")  # of the page that follows
_EXIT_CODE = struct.Struct("!h")  # negative: the number of the signal that ended the fork
_PASSED, _TOO_DEEP, _OUT_OF_MEMORY = 0, 3, 4
_TIME_SIGNALS = (signal.SIGPROF, signal.SIGXCPU)
_PARSER_SIGNALS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE)


class TrialResult(Enum):
    """Whether a page may be parsed, or why not."""

    PASSED = auto()
    TOO_DEEP = auto()
    TOO_LARGE = auto()
    TOO_SLOW = auto()
    CRASHED = auto()


class TrialProcess:
    """A process that tries out pages; it is started with the first and ends with its parent.

    Threads share it, and a fork of the parent starts its own.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._running: tuple[subprocess.Popen[bytes], socket.socket] | None = None
        os.register_at_fork(after_in_child=self._forget)
        atexit.register(self.stop)

    def try_out(self, utf8: bytes) -> TrialResult:
        """Return whether the page passes the limits; raise `OSError` if the process was killed or does not answer."""
        with self._lock:
            is_new = self._running is None
            try:
                return self._result(utf8)
            except ConnectionError:  # it died between two pages
                if is_new:
                    raise
            return self._result(utf8)

    def stop(self) -> None:
        """Stop the process, if it runs; the next page starts another."""
        if self._running is None:
            return
        process, channel = self._running
        self._running = None
        channel.close()
        process.kill()
        process.wait()

    def _forget(self) -> None:
        """Leave the process to the parent that this one was forked from."""
        self._lock = Lock()
        if self._running is not None:
            process, channel = self._running
            process.returncode = 0  # not ours to wait for
            channel.close()
            self._running = None

    def _result(self, utf8: bytes) -> TrialResult:
        try:
            exit_code = self._exit_code(utf8)
            if (result := _RESULTS.get(exit_code)) is None:
                raise ConnectionAbortedError(f"a fork was ended from outside (exit code {exit_code})")
        except OSError:
            self.stop()
            raise
        return result

    def _exit_code(self, utf8: bytes) -> int:
        if self._running is None:
            self._running = _start()
        _, channel = self._running
        channel.sendall(_LENGTH.pack(len(utf8)))
        channel.sendall(utf8)
        answer = channel.recv(_EXIT_CODE.size)
        if len(answer) < _EXIT_CODE.size:
            raise ConnectionResetError("the process ended")
        return _EXIT_CODE.unpack(answer)[0]


def _start() -> tuple[subprocess.Popen[bytes], socket.socket]:
    ours, theirs = socket.socketpair()
    ours.settimeout(_TIMEOUT_SECONDS)
    with theirs:
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and script
            [sys.executable, "-P", __file__],
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C in a terminal reaches only the parent
        )
    return process, ours


_RESULTS = {
    _PASSED: TrialResult.PASSED,
    _TOO_DEEP: TrialResult.TOO_DEEP,
    _OUT_OF_MEMORY: TrialResult.TOO_LARGE,
    **{-number: TrialResult.TOO_SLOW for number in _TIME_SIGNALS},
    **{-number: TrialResult.CRASHED for number in _PARSER_SIGNALS},
}


def _main() -> None:
    """Read pages from the socket that is standard input until the parent closes it or dies."""
    import_module("selectolax.lexbor")  # once, before the first fork
    channel = socket.socket(fileno=0)
    with channel.makefile("rb") as pages:
        while len(header := pages.read(_LENGTH.size)) == _LENGTH.size:
            exit_code = _exit_code_of_fork(pages.read(_LENGTH.unpack(header)[0]))
            channel.sendall(_EXIT_CODE.pack(exit_code))


def _exit_code_of_fork(page: bytes) -> int:
    process_id = os.fork()
    if process_id == 0:
        exit_code = _OUT_OF_MEMORY  # the parser reports it by an exception
        try:
            _limit()
            exit_code = _TOO_DEEP if _is_too_deep(page) else _PASSED
        finally:
            os._exit(exit_code)
    _, status = os.waitpid(process_id, 0)
    return os.waitstatus_to_exitcode(status)


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (1, 1))  # in whole seconds; the timer below ends it sooner
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, MAX_CPU_SECONDS)
    sizes = Path("/proc/self/statm")
    if sizes.exists():  # macOS has neither the file nor a limit: the time limits its memory
        size = int(sizes.read_text().split()[0]) * resource.getpagesize() + MAX_MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (size, size))


def _is_too_deep(page: bytes) -> bool:
    """Parse the page and return whether its elements are nested too deeply, all together or one of them."""
    from selectolax.lexbor import LexborHTMLParser

    node = LexborHTMLParser(page).root
    depth = ancestors = 0
    while node is not None:
        if node.is_element_node:
            ancestors += depth
            if depth > MAX_DEPTH or ancestors > MAX_ANCESTORS:
                return True
        following = node.child
        if following is not None:
            depth += 1
        while following is None and node is not None and depth > 0:
            following = node.next
            if following is None:
                node, depth = node.parent, depth - 1
        node = following
    return False


if __name__ == "__main__":
    _main()
