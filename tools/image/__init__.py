"""The container image, built without a container engine: Debian packages, wheels and the driver become a root
filesystem and an OCI archive. docs/dev/image.md explains it; ``make rootfs`` and the Dockerfile use it.

From Python, for what needs the image to test with::

    from tools.image.build import find_or_build

    image = find_or_build()      # of this machine's architecture; built once for each state of the sources
    image.archive                # for `ctr images import`
    image.name                   # "localhost/dranet:<version>", what the imported image is called
    image.root                   # the root filesystem; the program in it is /usr/bin/dranet
"""
