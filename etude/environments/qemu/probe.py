"""Says whether QEMU can run virtual machines here, by running one.

Owns the checks of the `qemu` backend.
"""

from __future__ import annotations

from etude.environments.plugin import Finding, run_check
from etude.environments.qemu.backend import QemuBackend
from etude.environments.qemu.config import QemuConfig
from etude.environments.qemu.machine import find_qemu
from etude.environments.vm.probe import KVM_ADVICE, guest_finding, kernel_finding


def probe(config: QemuConfig) -> list[Finding]:
    """Look at each part, then boot a guest. All `ok` means machines run here. Takes seconds; at most a minute."""
    findings = [run_check("emulator", find_qemu), kernel_finding()]
    if all(finding.ok for finding in findings):
        emulated = '; or accept an emulated processor with accel = "tcg"'
        advice = KVM_ADVICE + emulated if config.accel == "kvm" else "report this as a bug"
        findings.append(guest_finding(config, QemuBackend, advice))
    return findings
