"""Child of `guard`: calls functions of the workspace and reports the values they return.

The request is {key: (module, function, arguments)}. What is right is known to the parent alone.
"""

import sys


def run(request, report, _observe):
    sys.path.insert(0, "/workspace")
    for key, (module, function, arguments) in request.items():
        try:
            __import__(module)
            report(key, repr(getattr(sys.modules[module], function)(*arguments)))
        except BaseException as error:  # SystemExit included: code under test has no say in whether the next case runs
            report(key, f"<{type(error).__name__}>")
