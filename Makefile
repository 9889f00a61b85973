# runcrust: `make help` lists the targets. What a target needs from Debian, it installs.

ARCH   := $(shell uname -m)
# Static, so that one build runs on every node; glibc's static form where rustup has no musl.
TARGET ?= $(shell rustup target add $(ARCH)-unknown-linux-musl >/dev/null 2>&1 \
	&& echo $(ARCH)-unknown-linux-musl || echo $(ARCH)-unknown-linux-gnu)
PREFIX ?= /usr/local
BIN     = $(CURDIR)/target/$(TARGET)/release
VM      = $(CURDIR)/target/vm
OLD     = $(CURDIR)/target/old
TORTURE = 500

CARGO_DENY_VERSION    := 0.20.2
CARGO_NEXTEST_VERSION := 0.9.143

BUILD_PACKAGES := gcc libc6-dev
RUN_PACKAGES   := $(BUILD_PACKAGES) runc crun containerd e2fsprogs mount util-linux busybox-static
TEST_PACKAGES  := $(RUN_PACKAGES) strace xfsprogs btrfs-progs podman systemd
VM_PACKAGES    := $(BUILD_PACKAGES) e2fsprogs mmdebstrap qemu-system-x86 zstd

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

# With another one no test of a delegate's would be run, and none be missed.
ifneq ($(filter-out runc crun,$(DELEGATE))$(word 2,$(DELEGATE)),)
$(error DELEGATE is runc or crun, and for both it isn't set: '$(DELEGATE)')
endif

# A `$` in a filterset is no variable.
override export VM_FILTER := $(value VM_FILTER)

# Mounts in a namespace of its own, as a systemd host has them.
HOST := unshare --mount --propagation private sh tests/host-namespace.sh

.PHONY: help
help: ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

.PHONY: build
build: ## Build runcrust, crust-mount-hook and crust_ops, static, into target/
	$(call debian,$(BUILD_PACKAGES))
	RUSTFLAGS='-C target-feature=+crt-static' cargo build --locked --release \
		--target $(TARGET) --package runcrust --package crust-mount-hook --package crust-ops

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
test: build ## Run every test, as root, on runc, crun, containerd, podman, ext4, ext3, xfs, btrfs; DELEGATE=runc|crun for one
	$(call debian,$(TEST_PACKAGES))
	$(call tool,cargo-nextest,$(CARGO_NEXTEST_VERSION))
	RUNCRUST_BIN_DIR='$(BIN)' $(HOST) cargo nextest run --locked --workspace \
		$(if $(DELEGATE),-E 'not test(/::(runc|crun)$$/) | test(/::$(DELEGATE)$$/)')

.PHONY: torture
torture: build ## Kill crust_ops at TORTURE (500) random moments under load; `make test` does it 30 times
	$(call debian,$(TEST_PACKAGES))
	$(call tool,cargo-nextest,$(CARGO_NEXTEST_VERSION))
	RUNCRUST_BIN_DIR='$(BIN)' RUNCRUST_TORTURE=$(TORTURE) $(HOST) \
		cargo nextest run --locked --profile torture --package runcrust-tests --test ops

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

# The programs as `make install` installs them, and tests as `make test` has built them.
.PHONY: vm-test
vm-test: build ## Run what cgroup v2 and another kernel matter to, in QEMU; VM_FILTER=… for other tests
	$(call debian,$(VM_PACKAGES))
	$(call tool,cargo-nextest,$(CARGO_NEXTEST_VERSION))
	sh vm-image/test.sh $(VM)

.PHONY: demo
demo: build ## Show a deferred volume end to end
	$(call debian,$(RUN_PACKAGES))
	cargo build --quiet --locked --package runcrust-tests --bin demo
	@RUNCRUST_BIN_DIR='$(BIN)' $(HOST) target/debug/demo

.PHONY: install
install: build install-units ## Install the programs and systemd's units below PREFIX (/usr/local)
	install -D -m 0755 $(BIN)/runcrust $(DESTDIR)$(PREFIX)/bin/runcrust
	install -D -m 0755 $(BIN)/crust-mount-hook $(DESTDIR)$(PREFIX)/bin/crust-mount-hook
	install -D -m 0755 $(BIN)/crust_ops $(DESTDIR)$(PREFIX)/bin/crust_ops

.PHONY: install-units
install-units:
	@for unit in crust_ops.service crust_ops.socket crust.socket; do \
		sed 's,/usr/local/bin/,$(PREFIX)/bin/,' deploy/systemd/$$unit \
			| install -D -m 0644 /dev/stdin $(DESTDIR)$(PREFIX)/lib/systemd/system/$$unit || exit 1; \
	done

.PHONY: clean
clean: ## Remove what was built
	cargo clean
