# runcrust: `make help` lists the targets. What a target needs from Debian, it installs.

ARCH   := $(shell uname -m)
# Static, so that one build runs on every node; glibc's static form where rustup has no musl.
TARGET ?= $(shell rustup target add $(ARCH)-unknown-linux-musl >/dev/null 2>&1 \
	&& echo $(ARCH)-unknown-linux-musl || echo $(ARCH)-unknown-linux-gnu)
PREFIX ?= /usr/local
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
BIN     = $(CURDIR)/target/$(TARGET)/release
LEAN    = $(CURDIR)/target/$(TARGET)/lean
VM      = $(CURDIR)/target/vm
ENGINES = $(CURDIR)/target/engines
YOUKI   = $(CURDIR)/target/youki
MANUALS = $(CURDIR)/target/manuals
OLD     = $(CURDIR)/target/old
# Of Debian, for `make engines` and the node. `make test` takes the machine's own engines.
RELEASE ?= trixie
TORTURE = 500
FUZZ_TIME = 60
N       = 2000
PODS    = 100
BARE    = demo test
# The last one of before that there are nodes of: a tag, once there is one.
FROM    = b0d0110

CARGO_DENY_VERSION    := 0.20.2
CARGO_FUZZ_VERSION    := 0.13.2
CARGO_NEXTEST_VERSION := 0.9.143
# No Debian has it. Without its feature `v2` it takes cgroup v1 alone, without `seccomp` it needs no headers.
YOUKI_VERSION         := 0.7.0

BUILD_PACKAGES := gcc libc6-dev
RUN_PACKAGES   := $(BUILD_PACKAGES) runc crun containerd e2fsprogs mount util-linux busybox-static
CONFORMANCE_PACKAGES := $(BUILD_PACKAGES) e2fsprogs xfsprogs btrfs-progs mount util-linux busybox-static
TEST_PACKAGES  := $(RUN_PACKAGES) strace xfsprogs btrfs-progs buildah podman systemd groff-base
BENCH_PACKAGES := $(RUN_PACKAGES) musl-tools strace xfsprogs bindfs fuse3
FUZZ_PACKAGES  := $(BUILD_PACKAGES) g++
VM_PACKAGES    := $(BUILD_PACKAGES) e2fsprogs mmdebstrap zstd

# When what is released was made: at the last commit, or where that isn't known, at the last release.
export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null \
	|| date --utc --date "$$(sed -n 's/^## \[.*\] - //p' CHANGELOG.md | head -n 1)" +%s)

# Only what is missing is installed, so that nothing is upgraded under anybody's hands.
define debian
@missing=; for package in $(1); do \
	dpkg-query --show --showformat '$${db:Status-Status}\n' $$package 2>/dev/null \
		| grep -qx installed || missing="$$missing $$package"; \
done; \
if [ -n "$$missing" ]; then \
	echo "installing:$$missing"; \
	apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
		apt-get install -qq -y --no-install-recommends $$missing >/dev/null; \
fi
endef

# A cargo tool, unless some version of it is there.
define tool
@command -v $(1) >/dev/null || cargo install --quiet --locked --debug $(1)@$(2)
endef

# Arguments of make alone: variables with these names in an environment would leave out tests, and nobody would notice.
ifneq ($(origin TEST),command line)
override TEST :=
endif
ifneq ($(origin SUITE),command line)
override SUITE :=
endif

# The filterset of nextest's for a suite, or all, on a delegate, or both; TEST is a part of tests' names.
filterset = $(if $(1),binary($(1)),all()) & $(if $(2),(not test(/::(runc|crun)$$/) | test(/::$(2)$$/)),all())$(if \
	$(TEST), & test($(TEST)))

# Lists of make's are cut at blanks, and some of these are removed.
ifneq ($(words [$(CURDIR)] [$(DESTDIR)$(PREFIX)]),2)
$(error a directory with a blank in its name: '$(CURDIR)', '$(DESTDIR)$(PREFIX)')
endif

# Any other word selects no test, and nobody would notice. Only `engines`, as the only target, knows youki.
ifneq ($(filter-out runc crun $(if $(filter-out engines,$(MAKECMDGOALS)),,youki),$(DELEGATE))$(word 2,$(DELEGATE)),)
$(error DELEGATE is runc or crun (or youki, for `make engines` alone), and for both it isn't set: '$(DELEGATE)')
endif
ifeq ($(DELEGATE),youki)
ifneq ($(filter-out file,$(origin RELEASE))$(SHORT),)
$(error DELEGATE=youki runs with this machine's engines: RELEASE and SHORT have no effect)
endif
endif

# A `$` in a filterset is no variable.
override export VM_FILTER := $(value VM_FILTER)

# Static; and the same bytes wherever the sources, cargo's home and the toolchain are: paths get into
# panics' messages. Of prefixes that hold each other the last one counts.
RUSTFLAGS_RELEASE = -C target-feature=+crt-static \
	--remap-path-prefix=$(shell rustc --print sysroot)=/rust \
	--remap-path-prefix=$(abspath $(or $(CARGO_HOME),$(HOME)/.cargo))=/cargo \
	--remap-path-prefix=$(CURDIR)=/runcrust

# Mounts in a namespace of its own, as a systemd host has them.
HOST := unshare --mount --propagation private sh tests/host-namespace.sh

.PHONY: help
help: ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

.PHONY: build
build: ## Build runcrust, crust-mount-hook, crust_ops, crust-csi and crustlet, static, into target/
	$(call debian,$(BUILD_PACKAGES))
	RUSTFLAGS='$(RUSTFLAGS_RELEASE)' cargo build --locked --release \
		--target $(TARGET) --package crust-ops --package crust-csi --package crustlet
	RUSTFLAGS='$(RUSTFLAGS_RELEASE)' cargo build --locked --profile lean \
		--target $(TARGET) --package runcrust --package crust-mount-hook
	@install -t $(BIN) $(LEAN)/runcrust $(LEAN)/crust-mount-hook

.PHONY: check
check: ## Formatting, lints, licences, documentation, dependencies of what starts often
	$(call debian,$(BUILD_PACKAGES))
	$(call tool,cargo-deny,$(CARGO_DENY_VERSION))
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- --deny warnings
	cargo deny --locked check bans licenses sources
	RUSTDOCFLAGS='--deny warnings' cargo doc --quiet --locked --workspace --no-deps \
		--document-private-items
	@for package in runcrust crust-mount-hook; do \
		tree=$$(cargo tree --locked --package $$package --edges normal --prefix none) || exit 1; \
		if echo "$$tree" | grep -E '^(tokio|tonic) '; then \
			echo "$$package starts on every container operation: no async runtime in it" >&2; \
			exit 1; \
		fi; \
	done

.PHONY: test
test: build ## Run the tests, as root, on this machine's runc, crun, containerd, podman, buildah, and ext4, ext3, xfs, btrfs; SUITE=, TEST= (a part of its name), DELEGATE=runc|crun
	$(call debian,$(TEST_PACKAGES))
	$(call tool,cargo-nextest,$(CARGO_NEXTEST_VERSION))
	RUNCRUST_BIN_DIR='$(BIN)' $(HOST) cargo nextest run --locked --workspace \
		$(if $(SUITE)$(TEST)$(DELEGATE),-E '$(call filterset,$(SUITE),$(DELEGATE))')

ifeq ($(DELEGATE),youki)
# The tests know it as runc. It meets the machine's own engines, in the suites of the profile `youki`. It is run by
# hand, for youki's build takes minutes.
.PHONY: engines
engines: build
	$(call debian,$(TEST_PACKAGES))
	$(call tool,cargo-nextest,$(CARGO_NEXTEST_VERSION))
	cargo install --quiet --locked --root '$(YOUKI)' --no-default-features --features v1 youki@$(YOUKI_VERSION)
	RUNCRUST_BIN_DIR='$(BIN)' RUNC='$(YOUKI)/bin/youki' $(HOST) cargo nextest run --locked --profile youki \
		--package runcrust-tests $(if $(SUITE)$(TEST),-E '$(call filterset,$(SUITE))')
else
.PHONY: engines
engines: build ## Run the engine suites with the engines of Debian RELEASE (trixie; sid), docker's too; SUITE=, TEST=, DELEGATE= (youki: with this machine's engines), SHORT=1 as in CI
	$(call debian,$(TEST_PACKAGES) mmdebstrap)
	$(call tool,cargo-nextest,$(CARGO_NEXTEST_VERSION))
	sh tests/engines/run.sh '$(ENGINES)' '$(RELEASE)' '$(BIN)' \
		-E '$(call filterset,$(SUITE),$(DELEGATE))$(if $(SHORT), & ($(file <tests/engines/short.filter)))'
endif

# Of the tests that `make test` runs in part. A `'` would end the filterset.
.PHONY: torture
torture: build ## Kill whatever is done to a volume after each of its steps, crust_ops at TORTURE (500) moments, and crustlet at each call; TEST=, STEP= for one
	$(call debian,$(TEST_PACKAGES))
	$(call tool,cargo-nextest,$(CARGO_NEXTEST_VERSION))
	RUNCRUST_BIN_DIR='$(BIN)' RUNCRUST_TORTURE=$(TORTURE) RUNCRUST_TORTURE_STEP='$(STEP)' $(HOST) \
		cargo nextest run --locked --profile torture --package runcrust-tests --test csi --test interrupted --test ops --test restarts \
		$(if $(TEST),-E 'test(=$(TEST))')

.PHONY: soak
soak: build ## Let N (2000) pods live and be killed, 8 at a time, and PODS (100) of a node agent's; `make test` does 60 and 10
	$(call debian,$(TEST_PACKAGES))
	$(call tool,cargo-nextest,$(CARGO_NEXTEST_VERSION))
	RUNCRUST_BIN_DIR='$(BIN)' RUNCRUST_SOAK=$(N) RUNCRUST_SOAK_PODS=$(PODS) $(HOST) \
		cargo nextest run --locked --profile soak --package runcrust-tests --test soak --no-capture

# Only in one run on one machine do figures belong together.
.PHONY: bench
bench: build ## Measure what runcrust costs, as a table: docs/performance.md; ROWS=, ROUNDS=, CALLS=, PODS=
	$(call debian,$(BENCH_PACKAGES))
	RUSTFLAGS='$(RUSTFLAGS_RELEASE)' cargo build --quiet --locked --release --target $(TARGET) \
		--package runcrust-noop-server --package runcrust-fsgroup-walk
	cargo build --quiet --locked --profile measuring --package runcrust-benches
	@RUNCRUST_BIN_DIR='$(BIN)' ROWS='$(ROWS)' ROUNDS='$(ROUNDS)' CALLS='$(CALLS)' PODS='$(PODS)' $(HOST) \
		target/measuring/runcrust-benches

.PHONY: fuzz
fuzz: ## Look for input that breaks a parser's properties, FUZZ_TIME (60) seconds for each; FUZZ_TARGET=… for one
	$(call debian,$(FUZZ_PACKAGES))
	$(call tool,cargo-fuzz,$(CARGO_FUZZ_VERSION))
	@sh fuzz/run.sh $(FUZZ_TIME) $(FUZZ_TARGET)

# A revision from before crust_ops has none to replace.
.PHONY: upgrade-test
upgrade-test: build ## Replace the programs of FROM=<revision> by these under running pods, and back
	$(call debian,$(TEST_PACKAGES))
	$(call tool,cargo-nextest,$(CARGO_NEXTEST_VERSION))
	TARGET='$(TARGET)' sh tests/old-programs.sh '$(FROM)' '$(OLD)'
	RUNCRUST_BIN_DIR='$(BIN)' RUNCRUST_OLD_BIN_DIR='$(OLD)/bin' $(HOST) \
		cargo nextest run --locked --package runcrust-tests --test upgrade \
		$$(test -e '$(OLD)/bin/crust_ops' || echo '-E not(test(crust_ops))')

.PHONY: grammar
grammar: build ## Write down anew how the installed runc and crun read command lines
	$(call debian,$(RUN_PACKAGES))
	cargo build --quiet --locked --package runcrust-tests --bin grammar
	@RUNCRUST_BIN_DIR='$(BIN)' $(HOST) target/debug/grammar

# The node has the programs from their packages; the tests are those that `make test` has built.
.PHONY: vm-image
vm-image: ## Build the e2e node, a Debian image for QEMU, into target/vm/
	$(call debian,$(VM_PACKAGES))
	sh vm-image/run.sh image $(VM) '$(RELEASE)'

.PHONY: vm-test
vm-test: ## Run what an init, cgroup v2 and another kernel matter to, on the node; VM_FILTER=… for other tests, RELEASE=bookworm for a Debian 12
	$(call debian,$(VM_PACKAGES))
	$(call tool,cargo-nextest,$(CARGO_NEXTEST_VERSION))
	sh vm-image/run.sh test $(VM) '$(RELEASE)'

# Without what is run by hand alone, and what needs engines that the node hasn't: docker, buildah, and in a Debian 12 podman 5.
.PHONY: vm-test-all
vm-test-all: override export VM_FILTER = all() - test(a_delegate_that_has_pivoted_already) - binary(buildah) - binary(docker) \
	$(if $(filter bookworm,$(RELEASE)),- test(/^(a_subpath_of_a_named_volume|play_kube_mounts_a_subpath)/))
vm-test-all: export VM_TIMEOUT ?= 28800
vm-test-all: vm-test ## Run all tests on the node whose engines it has: hours

.PHONY: vm-shell
vm-shell: ## Give root's shell on the node, with the tests at hand
	$(call debian,$(VM_PACKAGES))
	$(call tool,cargo-nextest,$(CARGO_NEXTEST_VERSION))
	sh vm-image/run.sh shell $(VM) '$(RELEASE)'

# Of runcrust as it is built here, or of any other runtime: docs/conformance.md.
.PHONY: conformance
conformance: $(if $(RUNTIME),,build) ## Report which requirements of KEP-2857 RUNTIME=/path meets; CRUST_ROOT=, KUBELET_DIR=, ONLY=, ARGS=--json|--list
	$(call debian,$(CONFORMANCE_PACKAGES) $(if $(RUNTIME),,runc))
	cargo build --quiet --locked --package conformance
	@RUNTIME='$(or $(RUNTIME),$(BIN)/runcrust)' $(HOST) target/debug/conformance $(ARGS)

.PHONY: bare
bare: ## Run `make demo test` of what is committed in a bare Debian; BARE=… for other targets
	$(call debian,mmdebstrap git)
	sh tests/bare.sh $(CURDIR)/target/bare $(BARE)

.PHONY: demo
demo: build ## Show a deferred volume end to end
	$(call debian,$(RUN_PACKAGES))
	cargo build --quiet --locked --package runcrust-tests --bin demo
	@RUNCRUST_BIN_DIR='$(BIN)' $(HOST) target/debug/demo

# What goes below PREFIX/share: man/man8/…, bash-completion/completions/….
.PHONY: manuals
manuals: ## Write the manual pages and the shells' completions into target/manuals
	$(call debian,$(BUILD_PACKAGES))
	@rm -rf --one-file-system $(MANUALS)
	cargo run --quiet --locked --package crust-manuals -- $(MANUALS)

# By rename: pods that run call them at any time.
.PHONY: install
install: build manuals install-units ## Install the programs and systemd's units below PREFIX (/usr/local)
	@for program in crust-mount-hook runcrust crust_ops crust-csi crustlet; do \
		new=$(DESTDIR)$(PREFIX)/bin/.$$program.new; \
		install -D -m 0755 $(BIN)/$$program $$new && mv -f $$new $(DESTDIR)$(PREFIX)/bin/$$program || exit 1; \
	done
	@mkdir -p $(DESTDIR)$(PREFIX)/share && cp -R $(MANUALS)/. $(DESTDIR)$(PREFIX)/share

.PHONY: install-units
install-units:
	@for unit in crust_ops.service crust_ops.socket crust.socket; do \
		sed 's,/usr/local/bin/,$(PREFIX)/bin/,' deploy/systemd/$$unit \
			| install -D -m 0644 /dev/stdin $(DESTDIR)$(PREFIX)/lib/systemd/system/$$unit || exit 1; \
	done

.PHONY: licenses
licenses:
	@mkdir -p target && sh deploy/licenses.sh $(TARGET) >target/licenses

.PHONY: deb
deb: build manuals licenses ## Build the Debian packages runcrust and crust-ops into target/deb/
	rm -rf --one-file-system target/deb
	@$(MAKE) --silent install PREFIX=/usr DESTDIR=$(CURDIR)/target/deb/tree
	@install -D -m 0644 -t target/deb/tree/etc/runcrust deploy/etc/*.toml
	@sh deploy/deb/build.sh target/deb/tree target/licenses target/deb

.PHONY: dist
dist: deb ## Build what is released, with its SHA256SUMS, into target/dist/; the same bytes by the same tools
	@$(MAKE) --silent install PREFIX=/usr/local DESTDIR=$(CURDIR)/target/deb/prefix
	@sh deploy/dist.sh target/deb/prefix/usr/local target/licenses target/deb \
		runcrust-$(VERSION)-$(ARCH)-linux target/dist

.PHONY: image
image: build ## Build the DaemonSets' images into target/image/
	$(call debian,mmdebstrap podman)
	sh deploy/image/build.sh runcrust $(BIN) $(VERSION) target/image/runcrust-$(VERSION).tar
	sh deploy/image/build.sh crust-csi $(BIN) $(VERSION) target/image/crust-csi-$(VERSION).tar

.PHONY: reproducible
reproducible: ## Build what is released twice, in different directories, and compare
	sh deploy/reproducible.sh $(CURDIR)/target/reproducible

.PHONY: release-test
release-test: bare upgrade-test image reproducible ## What CI has no time for, before a release

.PHONY: clean
clean: ## Remove what was built
	cargo clean
