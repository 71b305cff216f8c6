"""Sessions that cheat, and honest ones that look alike: what the auditor is measured by."""
