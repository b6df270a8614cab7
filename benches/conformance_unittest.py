#!/usr/bin/env python3
"""Runs one unittest module and writes a line per test as it ends: what passed before a crash is kept.

Usage: conformance_unittest.py MODULE RESULTS
"""
import collections, faulthandler, importlib, socket, sys, unittest


class Recorder(unittest.TextTestResult):
    def startTestRun(self):
        self.file = open(sys.argv[2], "w", buffering=1)
        self.seen = collections.Counter()
        super().startTestRun()

    def startTest(self, test):
        self.outcome = "pass"
        super().startTest(test)

    def stopTest(self, test):
        # The same test may be in a suite twice.
        self.seen[test.id()] += 1
        turn = self.seen[test.id()]
        self.file.write(f"{test.id()}{f'#{turn}' if turn > 1 else ''} {self.outcome}\n")
        super().stopTest(test)

    def addSkip(self, test, reason):
        if self.outcome == "pass":
            self.outcome = "skip"
        super().addSkip(test, reason)

    def addError(self, test, err):
        self.outcome = "fail"
        super().addError(test, err)

    def addFailure(self, test, err):
        self.outcome = "fail"
        super().addFailure(test, err)

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self.outcome = "fail"
        super().addSubTest(test, subtest, err)

    def addUnexpectedSuccess(self, test):
        self.outcome = "fail"
        super().addUnexpectedSuccess(test)


def vsock_reaches_itself():
    """Some virtual machines have the device and no way to themselves: what listens there waits for ever."""
    with socket.socket(socket.AF_VSOCK) as listener, socket.socket(socket.AF_VSOCK) as client:
        for s in (listener, client):
            s.settimeout(5)
        try:
            listener.bind((socket.VMADDR_CID_ANY, 1233))
            listener.listen()
            client.connect((module.get_cid(), 1233))
            listener.accept()[0].close()
            return True
        except OSError:
            return False


if __name__ == "__main__":
    faulthandler.enable()
    from test import support
    support.verbose = 0
    support.use_resources = ["network"] if "--network" in sys.argv else []
    if sys.argv[1] == "test.test_socket":
        module = importlib.import_module(sys.argv[1])
        if not (module.HAVE_SOCKET_VSOCK and vsock_reaches_itself()):
            unittest.skip("no way to itself over vsock")(module.ThreadedVSOCKSocketStreamTest)
    suite = unittest.defaultTestLoader.loadTestsFromName(sys.argv[1])
    runner = unittest.TextTestRunner(stream=sys.stderr, verbosity=2, resultclass=Recorder)
    sys.exit(not runner.run(suite).wasSuccessful())
