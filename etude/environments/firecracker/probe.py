"""Says whether Firecracker can run virtual machines here, by running one.

Owns the checks of the `firecracker` backend.
"""

from __future__ import annotations

from etude.environments.firecracker.backend import FirecrackerBackend
from etude.environments.firecracker.config import FirecrackerConfig
from etude.environments.firecracker.machine import find_firecracker
from etude.environments.plugin import Finding, run_check
from etude.environments.vm.probe import KVM_ADVICE, guest_finding, kernel_finding


def probe(config: FirecrackerConfig) -> list[Finding]:
    """Look at each part, then boot a guest. All `ok` means machines run here. Takes seconds; at most a minute."""
    findings = [run_check("Firecracker", find_firecracker), kernel_finding()]
    if all(finding.ok for finding in findings):
        findings.append(guest_finding(config, FirecrackerBackend, KVM_ADVICE))
    return findings
