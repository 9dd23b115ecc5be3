"""The long search: ``python -m tests.fuzz [--target NAME] [--seconds N] [--seed N] [--case N]``.

Prints one line for each kind of finding, with the command that makes it again, and ends with 1
where there was any.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from .box import Finding, case_of, search
from .targets import TARGETS


def main(argv: list[str] | None = None) -> int:
    """Search, or show one case."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--target", choices=sorted(TARGETS), action="append")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each target")
    parser.add_argument("--seed", type=int, default=None, help="the time by default")
    parser.add_argument("--case", type=int, help="run this one alone and show its traceback")
    parser.add_argument("--save", type=Path, help="with --case: write its bytes here")
    args = parser.parse_args(argv)
    targets = args.target or sorted(TARGETS)
    seed = int(time.time()) if args.seed is None else args.seed
    if args.case is not None:
        if args.save is not None:
            with tempfile.TemporaryDirectory() as name:
                args.save.write_bytes(case_of(targets[0], seed, args.case, Path(name)))
        _, found = search(targets[0], seed, cases=1, first=args.case)
        for finding in found:
            print(finding.what, finding.trace, sep="\n")
        return bool(found)
    total: list[Finding] = []
    for target in targets:
        count, found = search(target, seed, seconds=args.seconds)
        print(f"{target}: {count} cases, {len(found)} findings", flush=True)
        kinds = Counter(f.what for f in found)
        for finding in found:
            if kinds.pop(finding.what, None) is not None:
                print(
                    f"  {finding.what}\n    python -m tests.fuzz --target {target}"
                    f" --seed {seed} --case {finding.number}",
                    flush=True,
                )
        total += found
    return bool(total)


if __name__ == "__main__":
    sys.exit(main())
