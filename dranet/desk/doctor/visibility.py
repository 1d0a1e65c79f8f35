"""What could not be looked at from here, said once."""

from __future__ import annotations

from collections.abc import Iterator

from dranet.desk.doctor.checks import Surroundings, Told, check, note

VISIBILITY = "view"


@check(
    "not-visible",
    VISIBILITY,
    "what cannot be looked at from where the doctor runs",
    matters="Nothing is said of it, neither good nor bad.",
    mend="On the node, as root: `dranet doctor`. In a debug container: `kubectl debug node/NODE -it "
    "--image=IMAGE --profile=sysadmin -- dranet doctor --host-root /host --procfs-root /host/proc "
    "--sysfs-root /host/sys`.",
)
def unseen(seen: Surroundings) -> Iterator[Told]:
    found = [f"{unseen.what} ({unseen.why})" for unseen in seen.host.unseen]
    if seen.host.runtime is None and not any("/etc" in text for text in found):
        found.append("the runtime's configuration (no file where it usually is)")
    if found:
        yield note(f"not visible from here: {'; '.join(found)}")


CHECKS = (unseen,)
