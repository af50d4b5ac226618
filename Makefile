# Every target that a person or CI runs. `make help` lists them from the ## comments.
#
# build, demo and test need Go, git and make, nothing else. What `make check` and `make interop` need beside
# that is in CONTRIBUTING.md; .ci/run installs it on Debian.

SHELL      = /bin/sh
GO         ?= go
# Packages a run covers: make test PKGS=./pkg/bth/...
PKGS       ?= ./...
# Further flags for `go test`: make test TESTFLAGS='-run NAME -v'
TESTFLAGS  ?=
# How long each fuzz target runs in `make fuzz-smoke`.
FUZZTIME   ?= 5s
# Upper bounds for one package's tests.
TIMEOUT    ?= 10m
RACETIMEOUT ?= 20m
# Benchmarks that `make bench` runs, and how often each.
BENCH      ?= .
BENCHCOUNT ?= 1
# `make bench QUICK=1` measures what the targets are about and only prints; ROUNDS of the run, 5 or then 3.
QUICK      ?=
ROUNDS     ?= $(if $(QUICK),3,5)
# Further flags of `make bench`: BENCHFLAGS="-reference '4096=PROGRAM ARGUMENTS'" (a floor's figure in GB/s)
BENCHFLAGS ?=
# When set, test runs append their counts to this file, one line a run (.ci/run adds them up; interop may, too).
COUNTFILE  ?=

TOOL        = $(GO) tool -modfile=tools/go.mod
TESTCOUNT   = $(GO) run ./internal/tools/testcount -counts '$(COUNTFILE)'
GOFILES     = git ls-files -co --exclude-standard -- '*.go'
# Packages whose tests are also built for (and, with an emulator, run on) a big-endian machine.
BE_PKGS     = $(wildcard ./pkg/bth ./pkg/bth/bthlayer ./pkg/mrtable ./pkg/qpstate ./pkg/wq ./pkg/cq ./pkg/transport ./internal/uapi ./internal/cm ./internal/capture)
LDFLAGS     =

.PHONY: help build demo test race matrix backends shuffle check lint fmt fmt-check mod-check vet vet-bigendian vet-crc deps fuzz-smoke soak conformance conformance-report interop interop-backends bench bench-rxe bench-go vuln gen gen-check man cover clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' Makefile

build: ## build the command into bin/softroce
	$(GO) build -o bin/softroce ./cmd/softroce

demo: ## two adapters on 127.0.0.1 and 127.0.0.2 do every verb once
	@$(GO) run ./cmd/softroce demo $(DEMOFLAGS)

test: ## run every test; prints what was skipped and why
	@$(TESTCOUNT) -name test -- -timeout $(TIMEOUT) $(TESTFLAGS) $(PKGS)

race: ## run every test under the race detector (needs a C compiler)
	@command -v "$$($(GO) env CC)" >/dev/null || { echo "race: the race detector needs a C compiler, and $$($(GO) env CC) is not installed" >&2; exit 1; }
	@CGO_ENABLED=1 $(TESTCOUNT) -name race -- -race -timeout $(RACETIMEOUT) $(TESTFLAGS) $(PKGS)

# Every cell runs even when an earlier one failed. A test that is about offloads or workers sets its own; those
# that are long and the same in every cell are left to `make race`.
MATRIX_PKGS = ./pkg/adapter ./internal/nic ./internal/e2e ./internal/perf ./internal/pingpong ./internal/demo
MATRIX      = on/1 on/3 off/1 off/3
BACKENDS    = packet tun
BACKEND_PKGS = $(MATRIX_PKGS) ./pkg/rdmacm ./internal/rping ./internal/cmtime ./internal/nc
MATRIX_SKIP = SteadyStateDoesNotAllocate|LossDoesNotAllocate|EveryVerbLocally|LocalPeerGoes|Learner|LaneBetween

matrix: ## the tests of the whole adapter under -race, with UDP offloads on and off, with 1 and 3 workers; then, without it, on each backend (root)
	@failed=; for cell in $(MATRIX); do \
		gso=$${cell%/*}; workers=$${cell#*/}; begin=$$(date +%s); \
		CGO_ENABLED=1 SOFTROCE_TEST_GSO=$$gso SOFTROCE_TEST_WORKERS=$$workers \
			$(TESTCOUNT) -name matrix-$$gso-$$workers -- -race -timeout $(RACETIMEOUT) -skip '$(MATRIX_SKIP)' $(TESTFLAGS) $(MATRIX_PKGS) || failed="$$failed $$cell"; \
		echo "matrix: $$cell took $$(($$(date +%s) - begin)) s"; \
	done; \
	$(MAKE) --no-print-directory backends || failed="$$failed backends"; \
	if [ -n "$$failed" ]; then echo "matrix: failed:$$failed" >&2; exit 1; fi

# All of them, since what tells the backends apart (a router on the way, several queues, no sockets, no multicast) shows in tests
# of anything; it takes three minutes each. Tests about what a backend does not have say so and are skipped
# (testmatrix.SkipOn).
backends: ## the tests of the whole adapter, its programs and its connection manager on the packet and TUN backends (root)
	@failed=; for backend in $(BACKENDS); do \
		if [ "$$(id -u)" != 0 ]; then echo "backends: $$backend skipped: it needs root"; continue; fi; \
		in=; if [ $$backend = tun ]; then in=.ci/in-tun-namespace; fi; begin=$$(date +%s); \
		SOFTROCE_TEST_BACKEND=$$backend $$in \
			$(TESTCOUNT) -name matrix-$$backend -- -timeout $(TIMEOUT) -skip '$(MATRIX_SKIP)' $(TESTFLAGS) $(BACKEND_PKGS) || failed="$$failed $$backend"; \
		echo "backends: $$backend took $$(($$(date +%s) - begin)) s"; \
	done; if [ -n "$$failed" ]; then echo "backends: failed:$$failed" >&2; exit 1; fi

shuffle: ## run every test in random order
	@$(TESTCOUNT) -name shuffle -- -shuffle=on -timeout $(TIMEOUT) $(TESTFLAGS) $(PKGS)

# Every step runs even when an earlier one failed; the summary names the failed ones.
CHECKS = fmt-check mod-check vet vet-bigendian vet-crc lint deps gen-check shuffle race fuzz-smoke vuln

check: ## everything that CI checks, apart from interop
	@failed=; summary=; \
	for step in $(CHECKS); do \
		echo "== $$step"; begin=$$(date +%s); \
		if $(MAKE) --no-print-directory $$step; then verdict=ok; else verdict=FAILED; failed="$$failed $$step"; fi; \
		summary="$$summary$$(printf '  %-14s %-7s %4d s' $$step $$verdict $$(($$(date +%s) - begin)))\n"; \
	done; \
	echo "== summary"; printf "$$summary"; \
	if [ -n "$$failed" ]; then echo "check: failed:$$failed" >&2; exit 1; fi

fmt: ## format the Go files (gofumpt, goimports)
	@$(GOFILES) | xargs -r $(TOOL) goimports -local github.com/softroce/softroce -w
	@$(GOFILES) | xargs -r $(TOOL) gofumpt -w

fmt-check: ## fail when a Go file is not formatted
	@bad=$$($(GOFILES) | xargs -r $(TOOL) gofumpt -l) || exit 1; \
	imports=$$($(GOFILES) | xargs -r $(TOOL) goimports -local github.com/softroce/softroce -l) || exit 1; \
	if [ -n "$$bad$$imports" ]; then \
		echo "fmt-check: not formatted ('make fmt' does it):" >&2; \
		printf '%s\n' $$bad $$imports | sort -u | sed 's/^/  /' >&2; exit 1; \
	fi

mod-check: ## fail when go.mod or go.sum is not tidy
	$(GO) mod tidy -diff

vet: ## go vet
	$(GO) vet $(PKGS)

# s390x is big-endian: a byte order taken for granted shows here. The tests are built; they run too where an
# emulator is installed (Debian: qemu-user).
vet-bigendian: ## vet and test build for a big-endian machine (runs the core's tests if qemu-s390x is there)
	GOARCH=s390x CGO_ENABLED=0 $(GO) vet $(PKGS)
	@if [ -z "$(BE_PKGS)" ]; then echo "vet-bigendian: no core package yet"; \
	elif command -v qemu-s390x >/dev/null; then \
		$(TESTCOUNT) -name bigendian -goarch s390x -- -short -exec qemu-s390x -timeout $(RACETIMEOUT) $(BE_PKGS); \
	else \
		echo "vet-bigendian: qemu-s390x is not installed: the tests are built, not run"; \
		dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && GOARCH=s390x CGO_ENABLED=0 $(GO) test -c -o "$$dir/" $(BE_PKGS); \
	fi

# The CRC has assembly for amd64 and arm64 (the latter with qemu-aarch64, where that is installed) and none elsewhere;
# the tag purego leaves it out here, too.
vet-crc: ## the tests of the CRC without assembly, and with arm64's (runs those if qemu-aarch64 is there)
	$(GO) vet -tags purego ./pkg/bth
	@$(TESTCOUNT) -name purego -- -tags purego -timeout $(TIMEOUT) ./pkg/bth
	GOARCH=arm64 CGO_ENABLED=0 $(GO) vet ./pkg/bth
	@if command -v qemu-aarch64 >/dev/null; then \
		$(TESTCOUNT) -name arm64 -goarch arm64 -- -short -exec qemu-aarch64 -timeout $(RACETIMEOUT) ./pkg/bth; \
	else \
		echo "vet-crc: qemu-aarch64 is not installed: the tests are built, not run"; \
		GOARCH=arm64 CGO_ENABLED=0 $(GO) test -c -o /dev/null ./pkg/bth; \
	fi

lint: ## golangci-lint with .golangci.yml
	$(TOOL) golangci-lint run

deps: ## the rule who may import whom (deps_test.go)
	$(GO) test -count=1 -run 'TestImports|TestRule|TestLintRules' .

fuzz-smoke: ## run every fuzz target for FUZZTIME (default 5s)
	@$(GO) run ./internal/tools/fuzzsmoke -time $(FUZZTIME) $(PKGS)

# The same seeds make the same worlds. A failing one prints the command that makes it again.
soak: ## random worlds of the protocol engine for SECONDS=600 (SEED=n SEEDS=n ADAPTERS=n REQUESTS=n TRACE=1)
	@$(GO) run ./internal/tools/soak $(if $(SECONDS),-seconds $(SECONDS)) $(if $(SEED),-seed $(SEED)) $(if $(SEEDS),-seeds $(SEEDS)) \
		$(if $(ADAPTERS),-adapters $(ADAPTERS)) $(if $(REQUESTS),-requests $(REQUESTS)) $(if $(TRACE),-trace)

# CONFORMANCEFLAGS="--only RDR --pcap DIR" are further flags of softroce conformance run.
conformance: ## the conformance suite against softroce on each backend, in two namespaces (root)
	@GO='$(GO)' conformance/run.sh $(CONFORMANCEFLAGS)
	@GO='$(GO)' conformance/run.sh -b packet $(CONFORMANCEFLAGS)
	@GO='$(GO)' conformance/run.sh -b tun $(CONFORMANCEFLAGS)

conformance-report: ## the same, and one page of it and of committed results: bin/conformance/report.html (root)
	@status=0; for b in packet tun; do GO='$(GO)' conformance/run.sh -b $$b $(CONFORMANCEFLAGS) || status=1; done; \
		GO='$(GO)' conformance/run.sh -r $(CONFORMANCEFLAGS) || status=1; exit $$status

# The part of the cases that `make interop` plays on the other backends as well; `make interop-backends` plays all.
INTEROP_SOME = ^pingpong/(small|64k|mtu-4096|ipv6|uc|ud|srq|loss)/|^beside/|^cm/rping/(defaults|4096|ipv6)/|^verbs/(send|write|read|atomic)

interop: ## the lab: kernel rdma_rxe in a QEMU guest against softroce (root; installs Debian packages)
	@if [ ! -x conformance/interop/run.sh ]; then echo "interop: conformance/interop/run.sh is not there" >&2; exit 1; fi
	@COUNTFILE='$(COUNTFILE)' conformance/interop/run.sh
	@COUNTFILE='$(COUNTFILE)' conformance/interop/run.sh -t '$(INTEROP_SOME)'
	@COUNTFILE='$(COUNTFILE)' conformance/interop/run.sh -p '$(INTEROP_SOME)'

interop-backends: ## every case of the lab on the packet and TUN backends (root)
	@status=0; for b in p t; do COUNTFILE='$(COUNTFILE)' conformance/interop/run.sh -$$b || status=1; done; exit $$status

bench: ## measure beside raw UDP, TCP and memcpy, write docs/performance.md (QUICK=1: targets only, prints)
	@command -v iperf3 >/dev/null || { echo "bench: iperf3 is not installed; on Debian: apt-get install iperf3" >&2; exit 1; }
	$(GO) test -run '^$$' -bench '^BenchmarkTable$$' -benchtime 1x -timeout 60m ./internal/bench -rounds $(ROUNDS) $(if $(QUICK),-quick,-docs $(CURDIR)/docs) $(BENCHFLAGS)

bench-rxe: ## measure beside kernel rdma_rxe in the lab's QEMU guest, write it into docs (ROUNDS=5; root; installs Debian packages)
	@conformance/interop/bench.sh -r $(ROUNDS) -w '$(CURDIR)/docs'

bench-go: ## run the Go benchmarks of every package
	$(GO) test -run '^$$' -bench '$(BENCH)' -skip '^BenchmarkTable$$' -benchmem -count $(BENCHCOUNT) -timeout 60m $(PKGS)

vuln: ## govulncheck, where its database can be reached
	@out=$$($(TOOL) govulncheck ./... 2>&1); code=$$?; \
	if [ $$code -ne 0 ] && printf '%s' "$$out" | grep -q 'fetching vulnerabilities'; then \
		echo "vuln: not checked: the vulnerability database cannot be reached from here"; exit 0; \
	fi; printf '%s\n' "$$out"; exit $$code

gen: ## run the generators (tables, documents of the command)
	$(GO) generate ./...

man: ## write the reference of the command, docs/cli
	$(GO) generate ./cmd/softroce

gen-check: ## fail when a generated file is out of date
	@state() { git ls-files -co --exclude-standard -z | xargs -0 -r cksum 2>/dev/null; }; \
	before=$$(mktemp) && after=$$(mktemp) && trap 'rm -f "$$before" "$$after"' EXIT && \
	state >"$$before" && $(MAKE) --no-print-directory gen && state >"$$after" && \
	if ! cmp -s "$$before" "$$after"; then \
		echo "gen-check: 'make gen' changed these files; commit them:" >&2; \
		diff "$$before" "$$after" | awk '/^[<>]/ { print "  " $$4 }' | sort -u >&2; exit 1; \
	fi

cover: ## test coverage, by function, into bin/cover.out
	@mkdir -p bin
	$(GO) test -coverprofile=bin/cover.out -coverpkg=./... -timeout $(TIMEOUT) $(PKGS)
	$(GO) tool cover -func=bin/cover.out | tail -n 1

clean: ## remove what the targets built
	rm -rf bin dist
