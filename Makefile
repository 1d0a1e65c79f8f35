# The few commands that a stranger types. `make help` lists them.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
PROTOS := $(wildcard proto/*/pb/*.proto)
MINUTES ?= 10
SEEDS   ?= 50
WORKERS ?= auto
RUNTIME ?= containerd
SEED    ?= 0
KUBE_VERSION ?=
HARDWARE ?= dgx-h100
NODES ?= 1
ARCH    ?= $(shell uname -m | sed 's/x86_64/amd64/; s/aarch64/arm64/')
OUTPUT  ?= build/image-$(ARCH)

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all test-docs test-runtime test-machine e2e cluster cluster-up cluster-down fuzz chaos soak check fmt proto lock docs docs-site docs-links pictures bench rootfs image image-lock release-dry-run clean

help: ## list these commands
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /  make \1|/' | column -t -s '|' 2>/dev/null \
	  || grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST)

setup: $(STAMP) ## make .venv with the command `dranet` in it; PYTHON=... selects the Python (then: make clean first)

$(STAMP): pyproject.toml testbed/pyproject.toml requirements-dev.lock .ci/system-packages
	@.ci/system-packages $(PYTHON)
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@echo "installing the locked Python packages into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --require-hashes -r requirements-dev.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable . --editable ./testbed
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -W ignore -m compileall -q -j 0 $(VENV)/lib dranet testbed
	@touch $@
	@echo "ready: $(BIN)/dranet --help"

demo: setup ## boot a node of eight GPUs and NICs, attach NICs to pods, prove the traffic and the return to the host
	@$(BIN)/dranet demo

# Tests start hundreds of Pythons: what one of them has compiled is there for the others. WORKERS processes share the
# tests by file. Most tests of test-all wait, and some of them load the machine, so that it has three wherever it runs.
test test-all test-docs: export PYTHONDONTWRITEBYTECODE :=
test-all: WORKERS = 3
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder
ROOM_TESTS = $(or $(wildcard tests/$(ROOM) tests/test_$(ROOM).py),$(error no tests/$(ROOM) and no tests/test_$(ROOM).py))

test: setup ## a first answer: tests without process, socket or namespace, and a few of each other kind; ROOM=kernel: one room's
	@$(PYTEST) $(if $(ROOM),$(ROOM_TESTS),--lane fast)

test-all: setup ## run every test that this machine can run; list by name those it cannot
	@$(PYTEST) --lane all

test-docs: setup ## the tests of documents, chart and examples, which `make test` leaves out until one of those changes
	@$(PYTEST) --lane documents

test-runtime: setup ## run every test that needs a real container runtime, on containerd 1.7 and on 2.x
	@TEST_ALL_RUNTIMES=1 $(BIN)/python -m pytest -m runtime tests/runtime tests/testbed tests/survival tests/tools/image

test-machine: setup ## boot a stock kernel with NUMA, SR-IOV and RDMA in a virtual machine, run discovery and kernel tests inside
	@$(BIN)/python -m testbed.machine

e2e: setup ## the scenarios on a real cluster: the one of `make cluster`, yours by KUBECONFIG=..., or LANE=kind; LANE=stand-in anywhere
	@KUBE_VERSION=$(KUBE_VERSION) $(BIN)/python -m e2e $(if $(LANE),--lane $(LANE)) $(SCENARIOS)

cluster: setup ## build what a real cluster runs, once: Kubernetes KUBE_VERSION=1.37 (1.36, 1.34), etcd, helm, the image; KUEUE=1 also Kueue; needs Go
	@KUBE_VERSION=$(KUBE_VERSION) $(BIN)/python -m e2e.cluster build

cluster-up: setup ## start a real cluster whose node has HARDWARE=dgx-h100, and leave it running
	@KUBE_VERSION=$(KUBE_VERSION) $(BIN)/python -m e2e.cluster up --hardware $(HARDWARE) --nodes $(NODES)

cluster-down: setup ## end the cluster of cluster-up
	@$(BIN)/python -m e2e.cluster down

fuzz: setup ## search for MINUTES=10 for input that breaks something: half by coverage, half with new random examples
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-fuzz.lock
	@$(BIN)/python -m tests.fuzz --seconds $$((30 * $(MINUTES)))
	@end=$$(($$(date +%s) + 30 * $(MINUTES))); while [ $$(date +%s) -lt $$end ]; do \
	  $(BIN)/python -m pytest -q -x -m hypothesis --hypothesis-profile=fuzz --timeout=0 || exit; done
	@HOSTILE_SECONDS=15 $(BIN)/python -m pytest -q tests/hostile

chaos: setup ## let the API server misbehave in SEEDS=50 ways, five seconds each; slices and statuses must end as wanted
	@CHAOS_SEEDS=$(SEEDS) $(BIN)/python -m pytest -q -x tests/chaos --timeout=0

soak: setup ## let pods and faults come at random for MINUTES=10 on RUNTIME=containerd (or stand-in); SEED=... repeats a run
	@$(BIN)/python -m tests.survival --seconds $$((60 * $(MINUTES))) --runtime $(RUNTIME) --seed $(SEED) --logs .cache/soak

check: setup ## lint, types, import contracts, words that the code no longer uses
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tools.words

fmt: setup ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

proto: setup ## regenerate dranet/pb, e2e/pb and testbed/pb from proto/
	$(BIN)/python -m grpc_tools.protoc -I proto --plugin=protoc-gen-mypy=$(BIN)/protoc-gen-mypy \
	  --python_out=. --mypy_out=quiet:. $(PROTOS)

docs: setup ## regenerate what is generated: reference pages, outputs in pages, chart, deploy/, examples
	$(BIN)/python -m tools.pages.reference docs

docs-site: setup ## build the documentation as a searchable site in build/site; a broken link is an error
	@$(BIN)/python -m tools.site

docs-links: setup ## look up the links of the documentation that lead to other sites; needs the internet
	@$(BIN)/python -m tools.site --links build/links

pictures: setup ## draw the pictures of the docs again: the status page, and the dashboards from a run of the testbed
	$(BIN)/python -m tests.driver.page
	$(BIN)/python -m tests.tools.monitoring.pictures

lock: setup ## update the locks of dependencies to the newest versions, with hashes and without addresses
	$(BIN)/uv pip compile --quiet --upgrade --python-platform linux --python-version 3.11 --generate-hashes --no-header --no-annotate \
	  --no-emit-package argcomplete pyproject.toml -o requirements.lock
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	  --no-emit-package dranet --extra pictures --group dev pyproject.toml testbed/pyproject.toml -o requirements-dev.lock
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	  --group pyproject.toml:fuzz -o requirements-fuzz.lock

rootfs: setup ## build the image's root filesystem and archive without a container engine, into build/image-ARCH (amd64, arm64)
	@$(BIN)/python -m tools.image rootfs --output $(OUTPUT) --arch $(ARCH) $(if $(IMAGE),--name $(IMAGE))

image: ## build the container image with docker, podman or buildah
	@tools/image/with-engine dranet $(ARCH)

image-lock: setup ## update the lock of the Debian packages of the image, and list what is newer
	@$(BIN)/python -m tools.image lock

RELEASE ?= build/release

release-dry-run: setup ## make a whole release into RELEASE=build/release, and publish nothing; LOCKED=1 as the workflow does it
	@$(BIN)/python -m tools.release build --output $(RELEASE)

bench: setup ## measure scan, Prepare, hook, start and memory; print ratios, write JSON
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -m compileall -q dranet
	@$(BIN)/python -m benchmarks

clean: ## remove the virtualenv, caches and local results
	rm -rf benchmarks/results/*.local.json $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
