# The commands of the project; each also installs what it needs (see .ci/need.sh).
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
.PHONY: build run test race check fuzz e2e clean

FUZZTIME ?= 10s
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
SUMMARY := bin/summary

build: # the binaries, in bin/
	go build -trimpath -ldflags '-X main.version=$(VERSION)' -o bin/ ./cmd/...

run: build # a node with demo data in front of a fake upstream, until Ctrl-C
	@bash deploy/run.sh

test: bin/summary # unit and integration tests, one package at a time since some measure time; the last line counts them
	@bash .ci/need.sh redis-server nginx
	@go test -count=1 -p 1 -json ./... | $(SUMMARY)

race: bin/summary # the same with the race detector; needs a C compiler
	@bash .ci/need.sh redis-server nginx gcc
	@go test -count=1 -p 1 -race -json ./... | $(SUMMARY)

check: # format, vet, staticcheck, go fix, go.mod
	@bash .ci/check.sh

fuzz: # every fuzz function for FUZZTIME
	@bash .ci/need.sh redis-server
	@bash .ci/fuzz.sh $(FUZZTIME)

e2e: bin/summary # the tests that start the real binaries, in their long form
	@bash .ci/need.sh redis-server nginx gcc
	@TOLLGATE_LONG=1 go test -count=1 -p 1 -tags long -timeout 30m -json ./cmd/... | $(SUMMARY)

# Built first: go run would add a line of its own behind the summary.
bin/summary: $(wildcard .ci/tools/summary/*.go)
	@go build -C .ci/tools -o ../../bin/summary ./summary

clean:
	rm -rf bin bench/out .run
