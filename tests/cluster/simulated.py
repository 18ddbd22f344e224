"""Tests that run in virtual time: ``@simulated()`` hands them a ``group``."""

import functools
import inspect

from tests.support.nodes.simulated_group import run_group


def simulated(**settings):
    """Run a test with a simulated group; pytest sees its other arguments."""

    def wrap(test):
        @functools.wraps(test)
        def run(**arguments):
            run_group(lambda group: test(group=group, **arguments), **settings)

        signature = inspect.signature(test)
        others = [each for name, each in signature.parameters.items() if name != "group"]
        run.__signature__ = signature.replace(parameters=others)
        return run

    return wrap
