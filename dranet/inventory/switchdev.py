"""Links that stand for something else than the function they sit on, in an embedded switch.

In switchdev mode a NIC shows one representor for each of its functions (``phys_port_name`` as devlink's port
flavours spell it), and a function may be cut into sub-functions, whose links hang on the auxiliary bus.
Neither goes into a pod in place of the function.
"""

from __future__ import annotations

import re

from dranet.model.facts import Link

_REPRESENTOR = re.compile(r"(c\d+)?pf\d+((vf|sf)\d+)?")
"""``pf0vf3``, ``c1pf0sf88``, ``pf0``; the wire's own port is ``p0``."""

_SUB_FUNCTION = re.compile(r".+\.sf\.\d+")
"""``mlx5_core.sf.4``."""


def is_representor(link: Link) -> bool:
    """Whether it is the switch's end of a wire to another function."""
    return bool(link.phys_port_name) and _REPRESENTOR.fullmatch(link.phys_port_name) is not None


def is_sub_function(link: Link) -> bool:
    """Whether it is the link of a sub-function, a part of the PCI function below it."""
    return link.parent_bus == "auxiliary" and _SUB_FUNCTION.fullmatch(link.parent_device) is not None
