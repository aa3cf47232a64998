# Everything that this project does, by name. Needs a Rust toolchain and make, nothing else.
# CARGO_TARGET_DIR, CARGO and the like are respected as cargo respects them.

CARGO ?= cargo
.DEFAULT_GOAL := help
.PHONY: help build fmt fix lint test sim jepsen-fast tidy docs verify demo bench generated

help: ## say what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

build: ## build the release binary
	$(CARGO) build --release --workspace

fmt: ## check the formatting
	$(CARGO) fmt --all --check

fix: ## format, and repair what clippy can
	$(CARGO) fmt --all
	$(CARGO) clippy --workspace --all-targets --fix --allow-dirty --allow-staged
	$(CARGO) fmt --all

lint: ## clippy, for the real and for the simulated build
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	$(CARGO) clippy --package holdfast --all-targets --features sim -- -D warnings

test: ## run every test: units, files, real processes on the loopback, and the simulator
	$(CARGO) test --workspace
	$(MAKE) --no-print-directory sim

# A build of its own: the feature puts every node on the simulator's runtime. Optimised a little:
# the tests take a quarter of the time then. More seeds: examples/simulate.
sim: ## run the simulator's tests only
ifneq ($(wildcard tests/simulation.rs),)
	CARGO_PROFILE_DEV_OPT_LEVEL=1 $(CARGO) test --package holdfast --features sim --test simulation
else
	@echo "tests/simulation.rs is not there yet: nothing to simulate"
endif

# Real processes, partitions, power cuts: see jepsen/README.md for what the machine must have.
jepsen-fast: ## break a cluster on purpose for four minutes and judge it; ARGS="…" is passed on
	$(CARGO) build --release --workspace
	$(CARGO) run --release --package holdfast-jepsen -- run --profile fast $(ARGS)

tidy: ## check the house rules only: imports, names, sizes, banned calls
	$(CARGO) test --package holdfast --test tidy

docs: ## build the API documentation; warnings are errors
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --document-private-items

verify: fmt lint test docs ## all that a commit must pass

demo: ## start three nodes on this machine and run a small sale; ARGS="…" is passed on
	$(CARGO) run --release -- demo $(ARGS)

bench: ## measure this machine with the load generator; ARGS="…" is passed on
	$(CARGO) run --release -- bench $(ARGS)

generated: ## write anew what is made from the code: config, docs/openapi.json, docs/cases.md
	REGENERATE=1 $(CARGO) test --package holdfast --test config shipped_file
	REGENERATE=1 $(CARGO) test --package holdfast --test openapi checked_in
	REGENERATE=1 $(CARGO) test --package holdfast --test tidy table_of_cases_tells
