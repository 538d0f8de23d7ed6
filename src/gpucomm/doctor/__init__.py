"""`gpucomm doctor`: what is on, what is off and why. Looks without importing or initialising anything big."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from gpucomm.doctor import devices, host, packages
from gpucomm.doctor.finding import Finding
from gpucomm.errors import Error

__all__ = ["Finding", "add_arguments", "examine", "main"]

# In the order of the report.
_LOOKS = host.LOOKS | packages.LOOKS | devices.LOOKS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line of `gpucomm doctor`."""
    parser.add_argument("--json", action="store_true", help="a list of objects with the keys name, on, why")


def main(args: argparse.Namespace) -> int:
    """Print the report."""
    findings = examine()
    width = max(len(finding.name) for finding in findings)
    if args.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=1))
        return 0
    for finding in findings:
        print(f"{finding.name:<{width}}  {'on ' if finding.on else 'off'}  {finding.why}")
    return 0


def examine() -> list[Finding]:
    """Look at everything; a look that fails is itself a finding."""
    findings: list[Finding] = []
    for name, look in _LOOKS.items():
        try:
            findings += look(name)
        except Error as error:
            findings.append(Finding(name, False, str(error)))
        except Exception as error:
            findings.append(Finding(name, False, f"could not be examined: {error!r}"))
    return findings
