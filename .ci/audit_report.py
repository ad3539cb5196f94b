"""Print the vulnerabilities that pip-audit found; fail if there is one, and say so if nothing could be looked up."""

import json
import sys
from pathlib import Path

packages = json.loads(Path(sys.argv[1]).read_text())["dependencies"]
audited = [package for package in packages if "skip_reason" not in package]
if not audited:
    print(f"audit skipped: the index here knows no vulnerabilities of any of {len(packages)} packages")
    sys.exit(0)
vulnerable = [package for package in audited if package["vulns"]]
for package in vulnerable:
    for entry in package["vulns"]:
        fixed = ", ".join(entry["fix_versions"]) or "no version yet"
        print(f"{package['name']} {package['version']}: {entry['id']}, fixed in {fixed}")
print(f"audited {len(audited)} of {len(packages)} packages: {len(vulnerable)} vulnerable")
sys.exit(bool(vulnerable))
