# The container image of dranet. A builder stage assembles the root filesystem (tools/image, docs/dev/image.md); the
# image is that and nothing else: no shell, no package manager, no compiler. `make image` builds it; where there is no
# container engine, `make rootfs` makes the same image as an archive.

# The builder runs on the machine's own architecture, whatever the image is for: packages are unpacked, never run.
FROM --platform=$BUILDPLATFORM debian:trixie-slim AS build
RUN apt-get update && apt-get install --yes --no-install-recommends ca-certificates python3 python3-pip
WORKDIR /source
COPY LICENSE pyproject.toml requirements.lock ./
COPY testbed/debian testbed/debian
COPY tools/project.py tools/project.py
COPY tools/image tools/image
COPY dranet dranet
ARG TARGETARCH
# 1: fail if Debian no longer serves a locked package, instead of taking its newest version with a warning.
ARG LOCKED
RUN --mount=type=cache,target=/root/.cache/dranet \
    python3 -B -m tools.image rootfs --output /image ${TARGETARCH:+--arch ${TARGETARCH}}

FROM scratch
# What changes with the locks, and what changes with every version: an update moves the small one.
COPY --from=build /image/base /
COPY --from=build /image/driver /
# On the node, the driver's folders and sockets belong to root; the pod decides which of root's rights are left (see
# docs/dev/image.md). What needs none of them runs with `--user 65532`.
USER 0:0
ENV PATH=/usr/bin LANG=C.UTF-8
WORKDIR /
ENTRYPOINT ["/usr/bin/dranet"]
CMD ["--help"]
ARG VERSION
LABEL org.opencontainers.image.title="dranet" \
      org.opencontainers.image.description="Kubernetes DRA network driver" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.url="https://github.example.com/dranet/dranet" \
      org.opencontainers.image.source="https://github.example.com/dranet/dranet" \
      org.opencontainers.image.documentation="https://github.example.com/dranet/dranet/blob/v${VERSION}/docs/README.md"
