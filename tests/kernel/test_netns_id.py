"""The name of a network namespace that no later one gets."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
from collections.abc import Callable

import pytest

from dranet.errors import KernelError
from dranet.kernel.namespaces import netns
from dranet.kernel.namespaces.netns import NetworkNamespace, open_netns, read_netns_id
from tests.kernel.plans import list_descriptors
from tests.support.namespaces import Namespace

pytestmark = pytest.mark.kernel


def put_another_at_the_path(namespace: Namespace) -> None:
    """The namespace ends, and a new one has its path, as with the ``/proc/PID/ns/net`` of another process."""
    namespace.netns.close()
    for action in ("del", "add"):
        subprocess.run(["ip", "netns", action, namespace.name], check=True)
    namespace.netns = NetworkNamespace.open(namespace.path)


def test_a_namespace_keeps_its_id_whichever_way_it_was_opened(
    make_namespace: Callable[..., Namespace],
) -> None:
    one, other = make_namespace(), make_namespace()
    with NetworkNamespace.open(one.path) as again:
        assert read_netns_id(again) == read_netns_id(one.netns)
    assert read_netns_id(other.netns) != read_netns_id(one.netns)


def test_a_later_namespace_at_the_same_path_has_another_id(make_namespace: Callable[..., Namespace]) -> None:
    """Its inode number is often the same: the kernel takes the lowest free one."""
    namespace = make_namespace()
    before = read_netns_id(namespace.netns)
    put_another_at_the_path(namespace)
    assert read_netns_id(namespace.netns) != before


def test_a_kernel_without_cookies_gives_the_inode(
    make_namespace: Callable[..., Namespace], monkeypatch: pytest.MonkeyPatch
) -> None:
    namespace = make_namespace()
    monkeypatch.setattr(netns, "SO_NETNS_COOKIE", 9999)
    status = namespace.path.stat()
    assert read_netns_id(namespace.netns) == f"inode {status.st_dev}:{status.st_ino}"


def test_another_refusal_is_a_named_error(
    make_namespace: Callable[..., Namespace], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> socket.socket:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    namespace = make_namespace()
    before = list_descriptors()
    monkeypatch.setattr(socket, "socket", refuse)
    for act in (read_netns_id, lambda netns: open_netns(str(netns.path), "cookie 1")):
        with pytest.raises(KernelError, match="Too many open files") as caught:
            act(namespace.netns)
        assert caught.value.errno == errno.EMFILE
    assert list_descriptors() <= before


def test_only_the_namespace_of_that_name_is_opened(make_namespace: Callable[..., Namespace]) -> None:
    namespace = make_namespace()
    path, name = str(namespace.path), read_netns_id(namespace.netns)
    for known in (name, ""):
        with open_netns(path, known) or pytest.fail("it is there") as found:
            assert read_netns_id(found) == name
    put_another_at_the_path(namespace)
    before = list_descriptors()
    assert open_netns(path, name) is None
    assert open_netns("", name) is None
    assert open_netns(f"{path}-that-never-was", name) is None
    assert list_descriptors() <= before
