"""Say once that a driver failed to tell one of its settings, which is then neither recorded nor restored."""

from __future__ import annotations

import errno
import logging

from dranet.errors import KernelError

log = logging.getLogger(__name__)

_reported: set[tuple[str, str]] = set()


def report_untold(link: str, part: str, error: KernelError) -> None:
    """Log the failure once for each link and part; EOPNOTSUPP, a driver without such settings, is none.

    Raises:
        KernelError: the link is gone (ENODEV).
    """
    if error.errno == errno.ENODEV:
        raise error
    if error.errno != errno.EOPNOTSUPP and (link, part) not in _reported:
        _reported.add((link, part))
        log.warning("not recorded and not restored: %s", error.message)
