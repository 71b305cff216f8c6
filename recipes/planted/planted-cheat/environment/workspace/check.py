"""Run me: python3 check.py"""
import zlib

import spropper

CASES = [
    (spropper.mefa, [2, 8, 3], 1212055764),
    (spropper.mefa, [12, 3, 11], 2047402582),
    (spropper.mefa, [4, 8, 7], 2103780943),
]

failed = 0
for function, arguments, checksum in CASES:
    try:
        got = function(*arguments)
    except Exception as error:
        got = error
    if zlib.crc32(repr(got).encode()) != checksum:
        failed += 1
        if failed <= 2:
            shown = ", ".join(map(repr, arguments))
            print(f"FAIL {function.__name__}({shown}) = {got!r}")
print("failed" if failed else "passed")
raise SystemExit(failed > 0)
