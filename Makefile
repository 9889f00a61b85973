# `make help` lists the targets. Each target installs the Debian packages that it needs.

ARCH   := $(shell uname -m)
# Static, so that one build runs on every node: with musl, or with glibc if rustup has no musl target.
TARGET ?= $(shell rustup target add $(ARCH)-unknown-linux-musl >/dev/null 2>&1 \
	&& echo $(ARCH)-unknown-linux-musl || echo $(ARCH)-unknown-linux-gnu)
PREFIX ?= /usr/local
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
BIN     = $(CURDIR)/target/$(TARGET)/release
LEAN    = $(CURDIR)/target/$(TARGET)/lean
# The programs that `make test` tests.
TESTED  = $(CURDIR)/target/tested
VM      = $(CURDIR)/target/vm
ENGINES = $(CURDIR)/target/engines
YOUKI   = $(CURDIR)/target/youki
MANUALS = $(CURDIR)/target/manuals
OLD     = $(CURDIR)/target/old
E2E     = $(CURDIR)/target/e2e
# Debian release for `make engines`, `make e2e` and for the node. `make test` uses this machine's engines.
RELEASE ?= trixie
PROGRAMS = crust-mount-hook runcrust crust_ops crust-csi crustlet
TORTURE = 500
FUZZ_TIME = 60
N       = 2000
PODS    = 100
BARE    = demo test
# The revision that `make upgrade-test` upgrades from: an older one that nodes run. Use a tag after the first release.
FROM    = b0d0110

CARGO_DENY_VERSION    := 0.20.2
CARGO_FUZZ_VERSION    := 0.13.2
CARGO_NEXTEST_VERSION := 0.9.143
# Debian has no package of youki. It is built without the features `v2` and `seccomp`: it then supports cgroup v1 only,
# and needs no libseccomp.
YOUKI_VERSION         := 0.7.0

BUILD_PACKAGES := gcc libc6-dev
RUN_PACKAGES   := $(BUILD_PACKAGES) runc crun containerd e2fsprogs mount util-linux busybox-static
CONFORMANCE_PACKAGES := $(BUILD_PACKAGES) e2fsprogs xfsprogs btrfs-progs mount util-linux busybox-static
TEST_PACKAGES  := $(RUN_PACKAGES) git tini strace xfsprogs btrfs-progs buildah podman systemd groff-base
BENCH_PACKAGES := $(RUN_PACKAGES) musl-tools strace xfsprogs bindfs fuse3
FUZZ_PACKAGES  := $(BUILD_PACKAGES) g++
VM_PACKAGES    := $(BUILD_PACKAGES) e2fsprogs mmdebstrap zstd

# The time stamp of released files: the time of the last commit, or without git that of the last release in
# CHANGELOG.md.
export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null \
	|| date --utc --date "$$(sed -n 's/^## \[.*\] - //p' CHANGELOG.md | head -n 1)" +%s)

# Installs those of the Debian packages $(1) that are missing. Installed packages are not upgraded.
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

# Installs version $(2) of the cargo tool $(1) with the options $(3), unless some version of it is installed. It
# is built without debug information, which nobody needs here.
define tool
@command -v $(1) >/dev/null || CARGO_PROFILE_DEV_DEBUG=0 cargo install --quiet --locked --debug $(3) $(1)@$(2)
endef

# Without `self-update`, and so without its HTTP client and TLS library.
nextest = $(call tool,cargo-nextest,$(CARGO_NEXTEST_VERSION),--no-default-features --features default-no-update)

# TEST and SUITE only count as arguments of make. Variables of these names in the environment would silently leave out
# tests.
ifneq ($(origin TEST),command line)
override TEST :=
endif
ifneq ($(origin SUITE),command line)
override SUITE :=
endif

# make ignores variables that it does not know, so `make test test=x` would run all tests.
KNOWN_VARIABLES := ARCH ARGS BARE CALLS CARGO% CRUN CRUST_ROOT DELEGATE DESTDIR E2E_BIN FROM FUZZ_TARGET FUZZ_TIME \
	KUBELET_DIR MAKE% N ONLY PODS PREFIX PROGRAMS RELEASE ROUNDS ROWS RUNC RUNCRUST_% RUNTIME RUST% SHARE SHORT \
	SOURCE_DATE_EPOCH STEP SUITE TARGET TEST TORTURE VERSION VM_%
on_command_line := $(foreach name,$(.VARIABLES),$(if $(findstring command line,$(origin $(name))),$(name)))
unknown_variables := $(filter-out $(KNOWN_VARIABLES) -%,$(on_command_line))
ifneq ($(unknown_variables),)
$(error no target uses the variable $(unknown_variables): `make help` names the variables of each target)
endif
ifneq ($(filter TEST SUITE,$(on_command_line)),)
ifeq ($(filter test test-programs lean test-build engines torture,$(MAKECMDGOALS)),)
$(error TEST and SUITE are only used by `make test`, `make engines` and `make torture`)
endif
endif
ifneq ($(filter DELEGATE,$(on_command_line)),)
ifeq ($(filter test test-programs lean test-build engines torture build e2e e2e-cluster,$(MAKECMDGOALS)),)
$(error DELEGATE is only used by `make test`, `make engines`, `make torture` and `make e2e`)
endif
endif

# The programs of tests, in every package.
SUITES := $(sort $(notdir $(basename $(patsubst %/main.rs,%.rs,$(wildcard $(foreach \
	package,crates/* fuzz manuals testbed/* tests tests/demo,$(package)/tests/*.rs $(package)/tests/*/main.rs))))))
ifneq ($(filter-out $(SUITES),$(SUITE))$(word 2,$(SUITE)),)
$(error SUITE='$(SUITE)' is not a suite. The suites are: $(SUITES))
endif

# A filterset of nextest: the suite $(1) or all, with the delegate $(2) or both, and with TEST in the test's name.
filterset = $(if $(1),binary($(1)),all()) & $(if $(2),(not test(/::(runc|crun)$$/) | test(/::$(2)$$/)),all())$(if \
	$(TEST), & test($(TEST)))

# make splits lists at blanks, and some targets remove directories below these paths.
ifneq ($(words [$(CURDIR)] [$(DESTDIR)$(PREFIX)]),2)
$(error a path must not contain a blank: the repository is in '$(CURDIR)', the prefix is '$(DESTDIR)$(PREFIX)')
endif

# Any other value would silently select no tests. Only `engines` supports youki, and only as the only target.
ifneq ($(filter-out runc crun $(if $(filter-out engines,$(MAKECMDGOALS)),,youki),$(DELEGATE))$(word 2,$(DELEGATE)),)
$(error DELEGATE='$(DELEGATE)' is not valid: set it to runc, to crun, or for `make engines` alone to youki; leave it \
	unset for both runc and crun)
endif
ifeq ($(DELEGATE),youki)
ifneq ($(filter-out file,$(origin RELEASE))$(SHORT),)
$(error DELEGATE=youki uses this machine's engines, so RELEASE and SHORT have no effect: leave them unset)
endif
endif

# `$(value)`, because a `$` in a filterset does not start a variable of make.
override export VM_FILTER := $(value VM_FILTER)

# Static, and reproducible: the messages of panics contain paths, so those of the sources, of cargo's home and of the
# toolchain are replaced. If several prefixes match a path, rustc uses the last one.
RUSTFLAGS_RELEASE = -C target-feature=+crt-static \
	--remap-path-prefix=$(shell rustc --print sysroot)=/rust \
	--remap-path-prefix=$(abspath $(or $(CARGO_HOME),$(HOME)/.cargo))=/cargo \
	--remap-path-prefix=$(CURDIR)=/runcrust

# Tests wait for processes most of the time, so more of them than there are processors run at once.
THREADS = --test-threads $(shell expr 3 '*' $$(nproc))

# Runs a command in a mount namespace of its own, with mounts like those of a host with systemd.
HOST := unshare --mount --propagation private sh tests/host-namespace.sh
# The same for the suites. They wait until ended processes of containers have been reaped, which the init of some virtual
# machines does only every few seconds; tini(1) as their subreaper does it at once. Its input is no terminal: otherwise
# it would take the terminal from this make's process group, and Ctrl-C would stop nothing after it.
TEST_HOST := </dev/null $(HOST) sh tests/on-tmpfs.sh tini -s --
run-tests = RUNCRUST_BIN_DIR='$(TESTED)' $(TEST_HOST) cargo nextest run --locked --workspace $(THREADS)

##@ First steps

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' ' \
		/^##@ / { printf "\n%s\n", substr($$0, 5) } \
		/^[a-z0-9-]+:.*## / { \
			line = sprintf("  %-14s", $$1); \
			count = split($$2, words, " "); \
			for (i = 1; i <= count; i++) { \
				if (length(line " " words[i]) > 100) { print line; line = sprintf("  %-14s", "") } \
				line = line " " words[i] \
			} \
			print line \
		}' $(MAKEFILE_LIST)

# Unoptimised programs, because an optimised build takes minutes.
.PHONY: demo
demo: ## Show one volume in two containers, end to end
	@echo 'Building runcrust, its hook and the demo; the first time this takes about two minutes.'
	$(call debian,$(RUN_PACKAGES))
	cargo build --locked --package runcrust --package crust-mount-hook --package runcrust-demo
	@RUNCRUST_BIN_DIR='$(CURDIR)/target/debug' $(HOST) target/debug/demo

build-daemons = RUSTFLAGS='$(RUSTFLAGS_RELEASE)' cargo build --locked --release --target $(TARGET) \
	--package crust-ops --package crust-csi --package crustlet

.PHONY: build
build: package-programs ## Build runcrust, crust-mount-hook, crust_ops, crust-csi and crustlet into target/, as static programs
	$(build-daemons)

# The programs of the Debian packages. Selects all daemons but builds only crust_ops, so that features, and thus compiled
# crates, are those of `build`.
.PHONY: package-programs
package-programs: lean
	$(build-daemons) --bin crust_ops
	@install -t $(BIN) $(LEAN)/runcrust $(LEAN)/crust-mount-hook

# The two programs that are run for every container.
.PHONY: lean
lean:
	$(call debian,$(BUILD_PACKAGES))
	RUSTFLAGS='$(RUSTFLAGS_RELEASE)' cargo build --locked --profile lean \
		--target $(TARGET) --package runcrust --package crust-mount-hook

.PHONY: install
install: build ## Install the programs, manual pages and systemd units below PREFIX (/usr/local)
	@$(MAKE) --silent install-built

# Installs what is built. Each program is replaced by a rename, because running pods may call it at any time.
.PHONY: install-built
install-built: manuals install-units
	@for program in $(PROGRAMS); do \
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

##@ Change something

.PHONY: check
check: ## Check formatting, lints, licences, documentation, and the dependencies of runcrust and its hook
	$(call debian,$(BUILD_PACKAGES))
	$(call tool,cargo-deny,$(CARGO_DENY_VERSION))
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- --deny warnings
	cargo deny --locked check --hide-inclusion-graph bans licenses sources
	RUSTDOCFLAGS='--deny warnings' cargo doc --quiet --locked --workspace --no-deps \
		--document-private-items
	@for package in runcrust crust-mount-hook; do \
		tree=$$(cargo tree --locked --package $$package --edges normal --prefix none) || exit 1; \
		if echo "$$tree" | grep -E '^(tokio|tonic) '; then \
			echo "$$package runs on every container operation: it must not depend on an async runtime" >&2; \
			exit 1; \
		fi; \
	done
	@echo 'make check: passed'

# All tests, and the programs that they run. runcrust and its hook are those of a release, because tests limit their
# sizes, instructions and system calls. The daemons are unoptimised, because their optimised build takes nine minutes of
# processor time; `make vm-test` tests the released crust_ops. Both builds run at once, because each has parts that use
# one processor. DELEGATE=youki is only valid for `engines`, so it is not passed on.
.PHONY: test-programs
test-programs:
	$(call debian,$(BUILD_PACKAGES))
	@$(MAKE) --no-print-directory --jobs 2 DELEGATE= lean test-build
	@install -D --strip -t $(TESTED) $(LEAN)/runcrust $(LEAN)/crust-mount-hook \
		target/debug/crust_ops target/debug/crust-csi target/debug/crustlet

# Other targets build single programs with `--workspace --bin`, too. With `--package` cargo would select other features,
# and compile many dependencies again.
.PHONY: test-build
test-build:
	cargo build --locked --workspace --tests --bins

# The exit status 4 is nextest's for a filter that no test matches.
.PHONY: test
test: test-programs ## Run the tests as root, with this machine's engines; SUITE=<suite>, TEST=<part of a name>, DELEGATE=runc|crun
	$(call debian,$(TEST_PACKAGES))
	$(nextest)
	$(run-tests) $(if $(SUITE)$(TEST)$(DELEGATE),--ignore-default-filter -E '$(call \
		filterset,$(SUITE),$(DELEGATE))') || { \
		status=$$?; \
		if [ $$status -eq 4 ]; then \
			echo 'make test: no test ran: either none has this name (cargo nextest list --workspace), or all of' \
				'them are ignored on this machine (make vm-test, make engines)' >&2; \
		fi; \
		exit $$status; \
	}

# `.config/nextest.toml` says which tests `make test` leaves out.
.PHONY: test-all
test-all: test-programs ## Run the tests of `make test`, and in more suites both with runc and with crun
	$(call debian,$(TEST_PACKAGES))
	$(nextest)
	$(run-tests) --ignore-default-filter

# docs/conformance.md. Without RUNTIME, the runcrust that is built here is tested.
.PHONY: conformance
conformance: $(if $(RUNTIME),,lean) ## Report which requirements of KEP-2857 RUNTIME=<path> meets; CRUST_ROOT=, KUBELET_DIR=, SHARE=, ONLY=, ARGS=--json|--list
	$(call debian,$(CONFORMANCE_PACKAGES) $(if $(RUNTIME),,runc))
	cargo build --quiet --locked --workspace --bin conformance
	@RUNTIME='$(or $(RUNTIME),$(LEAN)/runcrust)' $(HOST) target/debug/conformance $(ARGS)

.PHONY: fuzz
fuzz: ## Run each fuzz target for FUZZ_TIME (60) seconds; FUZZ_TARGET=<target> for one
	$(call debian,$(FUZZ_PACKAGES))
	$(call tool,cargo-fuzz,$(CARGO_FUZZ_VERSION))
	@sh fuzz/run.sh $(FUZZ_TIME) $(FUZZ_TARGET)

.PHONY: grammar
grammar: lean ## Record how the installed runc and crun parse command lines, into src/invocation/observed/
	$(call debian,$(RUN_PACKAGES))
	cargo build --quiet --locked --workspace --bin grammar
	@RUNCRUST_BIN_DIR='$(LEAN)' $(HOST) target/debug/grammar

# Figures can only be compared if they are from the same run on the same machine.
.PHONY: bench
bench: build ## Measure the cost of runcrust (docs/performance.md); ROWS=, ROUNDS=, CALLS=, PODS=
	$(call debian,$(BENCH_PACKAGES))
	RUSTFLAGS='$(RUSTFLAGS_RELEASE)' cargo build --quiet --locked --release --target $(TARGET) \
		--package runcrust-noop-server --package runcrust-fsgroup-walk
	cargo build --quiet --locked --profile measuring --package runcrust-benches
	@RUNCRUST_BIN_DIR='$(BIN)' ROWS='$(ROWS)' ROUNDS='$(ROUNDS)' CALLS='$(CALLS)' PODS='$(PODS)' $(HOST) \
		target/measuring/runcrust-benches

.PHONY: pictures
pictures: ## Draw docs/pictures/*.svg from the sources beside them
	$(call debian,graphviz)
	dot -Tsvg docs/pictures/overview.dot -o docs/pictures/overview.svg

##@ Test on other engines, and in a virtual machine

ifeq ($(DELEGATE),youki)
# The suites of nextest's profile `youki`, with this machine's engines. In the names of tests youki is `runc`. This is
# only run by hand, because a build of youki takes minutes.
.PHONY: engines
engines: test-programs
	$(call debian,$(TEST_PACKAGES))
	$(nextest)
	cargo install --quiet --locked --root '$(YOUKI)' --no-default-features --features v1 youki@$(YOUKI_VERSION)
	RUNCRUST_BIN_DIR='$(TESTED)' RUNC='$(YOUKI)/bin/youki' $(TEST_HOST) cargo nextest run --locked --profile youki \
		--workspace $(if $(SUITE)$(TEST),-E '$(call filterset,$(SUITE))')
else
.PHONY: engines
engines: test-programs ## Run the engine suites with the engines of Debian RELEASE=trixie|sid, docker included; SUITE=, TEST=, DELEGATE=runc|crun|youki, SHORT=1 as in CI
	$(call debian,$(TEST_PACKAGES) mmdebstrap)
	$(nextest)
	sh tests/engines/run.sh '$(ENGINES)' '$(RELEASE)' '$(TESTED)' \
		-E '$(call filterset,$(SUITE),$(DELEGATE))$(if $(SHORT), & ($(file <tests/engines/short.filter)))'
endif

# Looks for the programs that are in no package before the build, which takes minutes.
define start-cluster
@sh tests/e2e/programs.sh '$(abspath $(E2E_BIN))'
$(call debian,$(BUILD_PACKAGES) mmdebstrap podman)
@$(MAKE) --no-print-directory DELEGATE= build
endef
run-cluster = DELEGATE='$(DELEGATE)' sh tests/e2e/run.sh '$(E2E)' '$(RELEASE)' '$(abspath $(E2E_BIN))' '$(BIN)'

# docs/e2e.md. All scenarios, also those that affect the whole node.
.PHONY: e2e
e2e: ## Test on a Kubernetes cluster of one node, which it starts; E2E_BIN=<directory>, RELEASE=trixie|sid, DELEGATE=runc|crun, ARGS=<options of crust-e2e>
	$(start-cluster)
	cargo build --locked --workspace --bin crust-e2e
	$(run-cluster) target/debug/crust-e2e --install deploy/kubernetes --disrupt $(ARGS)

.PHONY: e2e-cluster
e2e-cluster: ## Start that cluster, and keep it until Ctrl-C; E2E_BIN=, RELEASE=, DELEGATE=
	$(start-cluster)
	@$(run-cluster)

.PHONY: e2e-shell
e2e-shell: ## Open a shell on the node of `make e2e-cluster`
	@sh tests/e2e/enter.sh '$(E2E)'

.PHONY: vm-test
vm-test: ## Run tests that need systemd, cgroup v2 or another kernel, in QEMU; VM_FILTER=<filterset>, RELEASE=trixie|bookworm
	$(call debian,$(VM_PACKAGES))
	$(nextest)
	sh vm-image/run.sh test $(VM) '$(RELEASE)' '$(TESTED)'

# All tests, except for those that are only run by hand, and those that need programs which the node does not have:
# docker, buildah, groff, git, and with Debian 12 podman 5.
.PHONY: vm-test-all
vm-test-all: override export VM_FILTER = all() - test(mounting_after_pivot_root) - binary(buildah) - binary(docker) \
	- binary(pages) - (binary(deploy) & test(/^release::/)) \
	$(if $(filter bookworm,$(RELEASE)),- test(/^(a_subpath_of_a_named_volume|play_kube_mounts_a_subpath)/))
vm-test-all: export VM_TIMEOUT ?= 28800
vm-test-all: vm-test ## Run all tests in QEMU, except for docker, buildah and those only run by hand; takes hours

# The node has the programs from their packages. The tests are those that `make test` builds.
.PHONY: vm-image
vm-image: ## Build the node for `make vm-test`, a Debian image for QEMU, into target/vm/
	$(call debian,$(VM_PACKAGES))
	sh vm-image/run.sh image $(VM) '$(RELEASE)' '$(TESTED)'

.PHONY: vm-shell
vm-shell: ## Open a root shell on the node in QEMU, with the tests
	$(call debian,$(VM_PACKAGES))
	$(nextest)
	sh vm-image/run.sh shell $(VM) '$(RELEASE)' '$(TESTED)'

##@ Test for a long time

# `make test` runs a part of these tests. TEST and STEP must not contain a `'`, because they are quoted with it.
.PHONY: torture
torture: build ## Kill programs after each step of a volume operation, crustlet at each call, and crust_ops at TORTURE (500) random moments; TEST=, STEP=
	$(call debian,$(TEST_PACKAGES))
	$(nextest)
	RUNCRUST_BIN_DIR='$(BIN)' RUNCRUST_TORTURE=$(TORTURE) RUNCRUST_TORTURE_STEP='$(STEP)' $(TEST_HOST) \
		cargo nextest run --locked --profile torture --workspace --test csi --test interrupted --test ops --test restarts \
		$(if $(TEST),-E 'test(=$(TEST))')

.PHONY: soak
soak: build ## Run and kill N (2000) pods, 8 at a time, and PODS (100) pods of crustlet; `make test` runs 60 and 10
	$(call debian,$(TEST_PACKAGES))
	$(nextest)
	RUNCRUST_BIN_DIR='$(BIN)' RUNCRUST_SOAK=$(N) RUNCRUST_SOAK_PODS=$(PODS) $(TEST_HOST) \
		cargo nextest run --locked --profile soak --workspace --test soak --no-capture

# Early revisions have no crust_ops, so its test is left out for them.
.PHONY: upgrade-test
upgrade-test: build ## Upgrade from FROM=<revision> and downgrade again, while pods run
	$(call debian,$(TEST_PACKAGES))
	$(nextest)
	TARGET='$(TARGET)' sh tests/old-programs.sh '$(FROM)' '$(OLD)'
	RUNCRUST_BIN_DIR='$(BIN)' RUNCRUST_OLD_BIN_DIR='$(OLD)/bin' $(TEST_HOST) \
		cargo nextest run --locked --workspace --test upgrade \
		$$(test -e '$(OLD)/bin/crust_ops' || echo '-E not(test(crust_ops))')

.PHONY: bare
bare: ## Run `make demo test` on the last commit in a minimal Debian; BARE=<targets> for other targets
	$(call debian,mmdebstrap git)
	sh tests/bare.sh $(CURDIR)/target/bare $(BARE)

##@ Release

# The directories are those below PREFIX/share: man/man8/…, bash-completion/completions/….
.PHONY: manuals
manuals: ## Write the manual pages and shell completions into target/manuals/
	$(call debian,$(BUILD_PACKAGES))
	@rm -rf --one-file-system $(MANUALS)
	cargo build --quiet --locked --workspace --bin manuals
	@target/debug/manuals $(MANUALS)

.PHONY: licenses
licenses:
	@mkdir -p target && sh deploy/licenses.sh $(TARGET) >target/licenses

.PHONY: deb
deb: package-programs manuals licenses ## Build the Debian packages runcrust and crust-ops into target/deb/
	rm -rf --one-file-system target/deb
	@$(MAKE) --silent install-built PREFIX=/usr DESTDIR=$(CURDIR)/target/deb/tree \
		PROGRAMS='crust-mount-hook runcrust crust_ops'
	@install -D -m 0644 -t target/deb/tree/etc/runcrust deploy/etc/*.toml
	@sh deploy/deb/build.sh target/deb/tree target/licenses target/deb

.PHONY: dist
dist: deb ## Build the release (an archive, the Debian packages, SHA256SUMS) into target/dist/
	@$(MAKE) --silent install PREFIX=/usr/local DESTDIR=$(CURDIR)/target/deb/prefix
	@sh deploy/dist.sh target/deb/prefix/usr/local target/licenses target/deb \
		runcrust-$(VERSION)-$(ARCH)-linux target/dist

.PHONY: image
image: build ## Build the container images of the DaemonSets into target/image/
	$(call debian,mmdebstrap podman)
	sh deploy/image/build.sh runcrust $(BIN) $(VERSION) target/image/runcrust-$(VERSION).tar
	sh deploy/image/build.sh crust-csi $(BIN) $(VERSION) target/image/crust-csi-$(VERSION).tar

.PHONY: reproducible
reproducible: ## Build the release twice in different directories, and compare the files
	sh deploy/reproducible.sh $(CURDIR)/target/reproducible

# VERSION has to be given: without it, it is the version in Cargo.toml.
.PHONY: release
release: ## Prepare the release VERSION=<x.y.z>: version, changelog, files, notes, commit and tag; all but the push
	@sh deploy/release.sh '$(if $(filter command line,$(origin VERSION)),$(VERSION))'

.PHONY: release-test
release-test: bare test-all upgrade-test image reproducible ## Run what CI has no time for, before a release

.PHONY: clean
clean: ## Remove target/
	cargo clean
