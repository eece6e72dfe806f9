# Every target works from a fresh clone: it sets up what it needs first.
# The recipes are short on purpose; the work is in scripts/ and in the package.

SHELL := /bin/bash
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# The caller's Python settings must not reach the project's own interpreter. Bytecode is written: the
# tests start hundreds of interpreters, and without it each of them compiles the whole package again.
unexport PYTHONPATH PYTHONHOME PYTHONSTARTUP PYTHONSAFEPATH PYTHONDONTWRITEBYTECODE PYTHONUNBUFFERED VIRTUAL_ENV
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1
export PYTHONNOUSERSITE := 1

BIN := .venv/bin
# Four on two cores: much of a test is waiting for processes, locks and disks.
PYTEST_ARGS ?= -n 4
SEEDS ?= 10000

.PHONY: $(shell awk -F: '/^[a-z-]+:/ { print $$1 }' Makefile)

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## make .venv with the locked packages and tools
	@scripts/setup dev

demo: ## an agent is killed inside a payment, another worker resumes (ARGS=--json)
	@scripts/setup runtime
	@$(BIN)/holdfast demo $(ARGS)

test: setup ## everything a change must pass: all tests, and check beside them (PYTEST_ARGS=...)
	@mkdir -p build
	@$(MAKE) check > build/check.txt 2>&1 & check=$$!; \
	$(BIN)/python -m pytest $(PYTEST_ARGS); tests=$$?; \
	wait $$check; checks=$$?; cat build/check.txt; \
	[ $$tests -eq 0 ] && [ $$checks -eq 0 ]

check: setup ## format, lint, types, layers
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/pyright
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m holdfast_proofs.house --rooms

format: setup ## rewrite the code in the project's format
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

proofs: setup ## every proof at its full size, in order; hours; one table in build/proofs.md (ARGS=NAMES)
	$(BIN)/python -m holdfast_proofs $(ARGS)

crash: setup ## kill a task at every call it makes to the system (POINTS=n for a sample, ARGS=...)
	$(BIN)/python -m holdfast_proofs.crash $(if $(POINTS),--points $(POINTS)) --report build/crash.json $(ARGS)

agent-kills: setup ## kill the example agents at every call, resume them on another disk (POINTS=n)
	@for example in travel research; do \
	  $(BIN)/python -m holdfast_proofs.agent_kills examples/$$example $(if $(POINTS),--points $(POINTS)) \
	    --report build/agent-kills-$$example.json || exit 1; \
	done

handoff-kills: setup ## kill a working agent at random moments; its files alone must answer (POINTS=200)
	$(BIN)/python -m holdfast_proofs.handoff_kills --points $(or $(POINTS),200) --report build/handoff-kills.json

moves: setup ## an agent's move to another host, killed before every call (POINTS=n)
	$(BIN)/python -m holdfast_proofs.moves $(if $(POINTS),--points $(POINTS)) --report build/moves.json
	$(BIN)/python -m holdfast_proofs.moves $(if $(POINTS),--points $(POINTS)) --no-arbiter --report build/moves-alone.json

instance-kills: setup ## every command of holdfast instance, killed before every call (POINTS=n)
	$(BIN)/python -m holdfast_proofs.instance_kills $(if $(POINTS),--points $(POINTS)) --report build/instance-kills.json
	$(BIN)/python -m holdfast_proofs.instance_kills $(if $(POINTS),--points $(POINTS)) --shared --report build/instance-kills-shared.json

drills: setup ## every drill on an example agent, as it is and with a planted fault (ARGS=NAMES)
	$(BIN)/python -m holdfast_proofs.drills --report build/drills.json $(ARGS)

level-walk: setup ## from nothing to level 3 proven by the printed next actions, typed at a terminal; as root
	$(BIN)/python -m holdfast_proofs.level_walk --report build/level-walk.json $(ARGS)

escapes: setup ## more than 200 attempts to reach production out of a shadow; each kind succeeds without its guard
	$(BIN)/python -m holdfast_proofs.shadow_escapes --report build/escapes.json $(ARGS)

drill-kills: setup ## SIGKILL drills at random moments: nothing is left but their own folder (KILLS=100)
	$(BIN)/python -m holdfast_proofs.drill_kills --kills $(or $(KILLS),100) --report build/drill-kills.json $(ARGS)

drill-reports: setup ## change 2,000 bytes of reports, break their chain, recompute their figures (FLIPS=2000)
	$(BIN)/python -m holdfast_proofs.drill_reports --flips $(or $(FLIPS),2000) --report build/drill-reports.json $(ARGS)

drill-load: setup ## recoveries in shadows beside a working agent: never evicted, as fast as without (ROUNDS=50)
	$(BIN)/python -m holdfast_proofs.drill_load --rounds $(or $(ROUNDS),50) --report build/drill-load.json $(ARGS)

far-drill: setup ## the quarterly test on another machine, reached by ssh: a network namespace; as root
	@scripts/setup ssh
	$(BIN)/python -m holdfast_proofs.far_drill --report build/far-drill.json $(ARGS)

rewind: setup ## an older journal comes back after effects were made, the code plans otherwise (CASES=200)
	$(BIN)/python -m holdfast_proofs.rewind --cases $(or $(CASES),200) --report build/rewind.json

decisions: setup ## ten processes decide one doubt at once: one decision counts (ROUNDS=500)
	$(BIN)/python -m holdfast_proofs.decision_races --rounds $(or $(ROUNDS),500) --report build/decisions.json

simulate: setup ## many schedules of faults in a simulated world (SEEDS=10000)
	$(BIN)/python -m holdfast_proofs.simulate --seeds $(SEEDS) --report build/simulate.json

explore: setup ## every interleaving of small worlds over the transition function (ARGS=--small)
	$(BIN)/python -m holdfast_proofs.explore --report build/explore.json $(ARGS)

identities: setup ## the identity log under random schedules of owner, thieves and liars (SCHEDULES=100000)
	$(BIN)/python -m holdfast_proofs.identity_schedules --schedules $(or $(SCHEDULES),100000) --report build/identities.json

identity-kills: setup ## kill and fail every act of an identity's life at every call (POINTS=n)
	$(BIN)/python -m holdfast_proofs.identity_kills $(if $(POINTS),--points $(POINTS)) --report build/identity-kills.json

relay-kills: setup ## kill a relay's store, an agent's send and its intake at every call (POINTS=n for a sample)
	$(BIN)/python -m holdfast_proofs.relay_kills $(if $(POINTS),--points $(POINTS)) --report build/relay-kills.json

relay-evictions: setup ## a recovery elsewhere stops the old machine, with relays as its only witnesses (ROUNDS=100)
	$(BIN)/python -m holdfast_proofs.relay_evictions $(if $(ROUNDS),--rounds $(ROUNDS)) --report build/relay-evictions.json

relay-idle: setup ## 2,000 agents wait at one relay, it restarts, one reader stalls (AGENTS=n MAILS=n)
	$(BIN)/python -m holdfast_proofs.relay_idle $(if $(AGENTS),--agents $(AGENTS)) $(if $(MAILS),--mails $(MAILS)) --report build/relay-idle.json

twin-recoveries: setup ## two bare machines recover one agent from one paper; the old worker stops (ROUNDS=50)
	$(BIN)/python -m holdfast_proofs.twin_recoveries $(if $(ROUNDS),--rounds $(ROUNDS)) --report build/twin-recoveries.json

backup-kills: setup ## kill backups, test restores and restores at every call (POINTS=n for a sample)
	$(BIN)/python -m holdfast_proofs.backup_kills $(if $(POINTS),--points $(POINTS)) --report build/backup-kills.json

backup-flips: setup ## one wrong bit in repositories, staging, streams and heads (FLIPS=2000)
	$(BIN)/python -m holdfast_proofs.backup_flips $(if $(FLIPS),--flips $(FLIPS)) --report build/backup-flips.json

memory-edits: setup ## the agent and an editor write one memory file at once: no line may be lost (EDITS=10000, ARGS="--instances 3")
	$(BIN)/python -m holdfast_proofs.memory_edits --edits $(or $(EDITS),10000) --report build/memory-edits.json $(ARGS)

instance-folders: setup ## three instances merge memory over a folder that delivers badly; planted faults are noticed (RUNS=10000)
	$(BIN)/python -m holdfast_proofs.instance_worlds.folders --runs $(or $(RUNS),10000) --report build/instance-folders.json
	$(BIN)/python -m holdfast_proofs.instance_worlds.folders --self-test --report build/instance-folders-faults.json

merge-kills: setup ## kill a merge of memory at each of its calls (ARGS="--step 4")
	$(BIN)/python -m holdfast_proofs.merges.kills --report build/merge-kills.json $(ARGS)

merges: setup ## five instances merge one memory under random schedules; each trap opened again is noticed (SCHEDULES=100000)
	$(BIN)/python -m holdfast_proofs.merges --schedules $(or $(SCHEDULES),100000) --report build/merges.json
	$(BIN)/python -m holdfast_proofs.merges --self-test --report build/merges-traps.json

soak: setup ## load on real workers, one killed each second, replies lost (TASKS=n, ARGS="--journal postgres")
	$(BIN)/python -m holdfast_proofs.soak $(if $(TASKS),--tasks $(TASKS)) --report build/soak.json $(ARGS)

relay-soak: setup ## mail between 20 agents while relays are killed and cut off, 3 seeds (MESSAGES=100000, ARGS="--seeds 1")
	$(BIN)/python -m holdfast_proofs.relay_lab $(if $(MESSAGES),--messages $(MESSAGES)) --report build/relay-soak.json $(ARGS)

relay-restores: setup ## lose an agent's machine under traffic, recover it from paper and an old backup; all relays lost (ROUNDS=50)
	$(BIN)/python -m holdfast_proofs.relay_lab.restores $(if $(ROUNDS),--rounds $(ROUNDS)) --report build/relay-restores.json $(ARGS)

relay-liars: setup ## one relay of three drops mail, shows two chains, keeps nothing or serves old or foreign profiles (MESSAGES=600)
	$(BIN)/python -m holdfast_proofs.relay_lab.liars $(if $(MESSAGES),--messages $(MESSAGES)) --report build/relay-liars.json $(ARGS)

failovers: setup ## cut the link between two PostgreSQL servers under writers, promote the standby; as root (ROUNDS=50, ARGS=--patroni=10)
	@scripts/setup cluster
	$(BIN)/python -m holdfast_proofs.failovers $(if $(ROUNDS),--rounds $(ROUNDS)) --report build/failovers.json $(ARGS)

region-loss: setup ## cut off a region with its server and workers, promote the other one; as root (ROUNDS=20)
	$(BIN)/python -m holdfast_proofs.failovers.regions $(if $(ROUNDS),--rounds $(ROUNDS)) --report build/region-loss.json $(ARGS)

takeovers: setup ## instances of one agent are killed, stopped, cut off and lose their disks under load; as root (ROUNDS=200, ARGS="--partitions 70 --default-timers 20 --promotes 20 --self-test")
	$(BIN)/python -m holdfast_proofs.takeovers $(if $(ROUNDS),--rounds $(ROUNDS)) --report build/takeovers.json $(ARGS)

instances: setup ## two to four instances in simulated time: who may act, and what memory they have (WORLDS=1000, ARGS=--self-test)
	$(BIN)/python -m holdfast_proofs.instance_worlds $(if $(WORLDS),--worlds $(WORLDS)) --report build/instances.json $(ARGS)

breaks: setup ## end 1,000 connections and kill pgbouncer 100 times under load (ARGS="--connections 100 --poolers 10")
	$(BIN)/python -m holdfast_proofs.failovers.breaks --report build/breaks.json $(ARGS)

fleet: setup ## 200 agents in one worker process and one PostgreSQL: connections, memory, idle share, a flood (ARGS="--agents 50")
	$(BIN)/python -m holdfast_proofs.fleet --report build/fleet.json $(ARGS)

fuzz: setup ## give every border what nobody sends on purpose (RUNS=1000000)
	@$(BIN)/python -m pip install --quiet --require-hashes --only-binary :all: -r requirements/fuzz.lock || \
	  echo "fuzz: atheris has no wheel for this Python or machine; going on with our own mutations" >&2
	$(BIN)/python -m holdfast_proofs.fuzz $(if $(RUNS),--runs $(RUNS)) --report build/fuzz.json

mutants: setup ## change the deciding modules in small wrong ways; some test must notice
	$(BIN)/python -m holdfast_proofs.mutants --defences --report build/defences.json
	$(BIN)/python -m holdfast_proofs.mutants --report build/mutants.json

# Over PostgreSQL the peers always run beside us: they are meant to be used there.
bench: setup $(if $(findstring postgres,$(ARGS)),build/peers/ready) ## steps per second against raw commits (TASKS=n, ARGS="--journal postgres")
	$(BIN)/python bench/steps.py $(if $(TASKS),--tasks $(TASKS)) $(if $(findstring postgres,$(ARGS)),--peers build/peers) $(ARGS)

bench-peers: setup build/peers/ready ## the same beside DBOS and LangGraph, in one interleaved run, with a plot
	$(BIN)/python bench/steps.py --peers build/peers

build/peers/ready: requirements/peers.lock | setup
	@test -x build/peers/bin/python || $(BIN)/python -m venv build/peers
	@build/peers/bin/python -m pip install --quiet --no-deps --require-hashes --only-binary :all: -r requirements/peers.lock
	@touch $@

bench-relay: setup build/peers-relay/ready ## what one relay carries, and what a kill loses, beside nostr-relay (ARGS=--json)
	$(BIN)/python bench/relay.py --peers build/peers-relay $(ARGS)

build/peers-relay/ready: requirements/peers-relay.lock | setup
	@test -x build/peers-relay/bin/python || $(BIN)/python -m venv build/peers-relay
	@build/peers-relay/bin/python -m pip install --quiet --no-deps --require-hashes --only-binary :all: -r requirements/peers-relay.lock
	@touch $@

bench-merge: setup ## merge 1 MB of memory with 10,000 edits of two instances: time, bytes on the wire, size beside the file
	$(BIN)/python bench/merge.py $(ARGS)

bench-standby: setup ## processor time and memory of an idle standby at a shared journal (ARGS="--seconds 60 --json build/standby.json")
	$(BIN)/python bench/standby.py $(ARGS)

docs: setup ## run the examples and check the links of the documents
	$(BIN)/python -m pytest tests/docs

lock: setup ## write requirements/*.lock anew (ARGS=--upgrade for the newest versions)
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements/locking.lock
	scripts/lock $(ARGS)

wheel: setup ## build dist/*.whl
	$(BIN)/python -m build --wheel --no-isolation

clean: ## remove everything that can be made again
	rm -rf .venv dist build .pytest_cache .ruff_cache .hypothesis .import_linter_cache htmlcov .coverage .coverage.*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
