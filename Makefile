# Every target does its own set-up first; `make help` lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help demo cluster cluster-kill test test-quick serve compile vendor lint types bench crash fuzz cluster-crash simulate interop scenarios spark spark-soak lock reference dashboards clean

PYTHON_ENV := .venv/bin/python
# The tests start hundreds of processes: each would compile all modules anew where bytecode is not to be written.
export PYTHONPYCACHEPREFIX := $(CURDIR)/build/pycache
unexport PYTHONDONTWRITEBYTECODE
# Extra words for the command of a target: make test ARGS="-k store", make serve ARGS="--set ..."
ARGS ?=
CRASH_ROUNDS ?= 50
ROUNDS ?= 100
CRASH_STATES ?= 3000
FUZZ_SECONDS ?= 60
REPLICATION_RUNS ?= 20000
SOAK_SECONDS ?= 1800
SIMULATION_SEEDS ?= 10000
# Most tests wait for disks and other processes, so two processes more than cores. Each file of tests stays in one
# of them, and they begin in the order tests/conftest.py gives them: those that wait in all processes but one.
TEST_PROCESSES ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 2)
# The first time, two processes write the bytecode of the tests and of what they import: 25 s of the processor, which
# each process of the tests would take for itself.
COLLECTED := build/pycache/collected
COLLECT = { $(PYTHON_ENV) -m pytest --collect-only tests/unit >/dev/null & \
	$(PYTHON_ENV) -m pytest --collect-only tests --ignore tests/unit >/dev/null; wait; touch $(COLLECTED); }

help:  ## This list
	@awk '/^##@ / { printf "\n%s\n", substr($$0, 5) } \
		match($$0, /^[a-z-]+:.*## /) { printf "  make %-12s %s\n", substr($$0, 1, index($$0, ":") - 1), substr($$0, RLENGTH + 1) }' \
		$(MAKEFILE_LIST)

##@ Run

demo:  ## The whole journey on this machine's own measurements (Ctrl-C or DEMO_SECONDS=90 ends it)
	@tools/setup.sh demo
	@exec $(PYTHON_ENV) demo/gateway_demo.py $(ARGS)

serve:  ## The gateway on its default ports, data in ./data
	@tools/setup.sh core
	@exec .venv/bin/iotmq serve --data data $(ARGS)

cluster:  ## A replicated broker on this machine: three members, two registries, two front ends, etcd
	@tools/setup.sh dev
	@exec $(PYTHON_ENV) deploy/cluster/replicated_cluster.py $(ARGS)

cluster-kill:  ## Kill its masters under load and count what is lost; ARGS="--how stop --rounds 20"
	@tools/setup.sh dev
	@exec $(PYTHON_ENV) deploy/cluster/kill_masters.py $(ARGS)

##@ Check

# With one order of sets in all processes, a seed of the simulation is one run.
test:  ## All tests, in TEST_PROCESSES (cores + 2) processes; ARGS="-k name" selects
	@tools/setup.sh dev
	@[ -f $(COLLECTED) ] || $(COLLECT)
	@PYTHONHASHSEED=0 $(PYTHON_ENV) -m pytest -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder $(ARGS)

test-quick:  ## The unit tests and the rules about the tree; no foreign clients, no kills, no Spark
	@tools/setup.sh dev
	@$(PYTHON_ENV) -m pytest -n $(TEST_PROCESSES) --dist loadfile tests/unit tests/repo -m "not slow" $(ARGS)

lint:  ## ruff, and cython-lint
	@tools/setup.sh dev
	@$(PYTHON_ENV) -m ruff check .
	@PATH="$$PWD/.venv/bin:$$PATH" cython-lint $$(git ls-files '*.pyx' '*.pxd')

types:  ## mypy --strict, and the types in the pages of the console where there is Node.js
	@tools/setup.sh dev
	@$(PYTHON_ENV) -m mypy
	@if command -v node >/dev/null; then node build/vendor/node_modules/typescript/bin/tsc -p tools/vendor/tsconfig.json; fi

##@ Long runs

bench:  ## Side by side with other brokers, and the micro benchmarks; ARGS="--quick" for a look
	@tools/setup.sh dev
	@$(PYTHON_ENV) -m benchmarks $(ARGS)

crash:  ## Kills under load and power cuts (CRASH_ROUNDS=50, CRASH_STATES=3000); IOTMQ_CRASH_SEED=N repeats
	@tools/setup.sh dev
	@IOTMQ_CRASH_ROUNDS=$(CRASH_ROUNDS) IOTMQ_CRASH_STATES=$(CRASH_STATES) \
		IOTMQ_CRASH_SEED=$${IOTMQ_CRASH_SEED:-$$RANDOM} \
		$(PYTHON_ENV) -m pytest tests/crash $(ARGS)

cluster-crash:  ## Faults of members, etcd, network and disks under load (ROUNDS=100 of each kind of cluster); IOTMQ_CRASH_SEED=N repeats
	@tools/setup.sh dev
	@IOTMQ_CLUSTER_ROUNDS=$(ROUNDS) IOTMQ_CRASH_SEED=$${IOTMQ_CRASH_SEED:-$$RANDOM} \
		$(PYTHON_ENV) -m pytest tests/crash/test_cluster_faults.py -s $(ARGS)

fuzz:  ## Mutated traffic on every port, every request and the MQTT core, damaged data directories (FUZZ_SECONDS=60 each), then the property tests for long
	@tools/setup.sh dev
	@$(PYTHON_ENV) tests/fuzz/fuzz_mqtt.py --seconds $(FUZZ_SECONDS)
	@IOTMQ_MQTT_CORPUS=all $(PYTHON_ENV) -m pytest tests/integration/test_mqtt_corpus_sockets.py
	@$(PYTHON_ENV) tests/fuzz/fuzz_ports.py --seconds $(FUZZ_SECONDS)
	@$(PYTHON_ENV) tests/fuzz/fuzz_native.py --seconds $(FUZZ_SECONDS)
	@$(PYTHON_ENV) tests/fuzz/fuzz_store.py --seconds $(FUZZ_SECONDS)
	@IOTMQ_SESSION_PROGRAMS=100 IOTMQ_SHARED_PROGRAMS=10 $(PYTHON_ENV) -m pytest tests/integration/test_session_model.py \
		tests/integration/test_shared_model.py
	@$(PYTHON_ENV) -m pytest tests/property --hypothesis-profile=fuzz --timeout=3600 $(ARGS)

simulate:  ## Whole gateways and replicated clusters in simulated time, with faults (SIMULATION_SEEDS=10000, REPLICATION_RUNS=20000); IOTMQ_SIMULATION_SEED=N, IOTMQ_REPLICATION_SEED=N repeat
	@tools/setup.sh dev
	@SIMULATION_SEEDS=$(SIMULATION_SEEDS) IOTMQ_REPLICATION_RUNS=$(REPLICATION_RUNS) $(PYTHON_ENV) -m pytest \
		tests/simulation tests/unit/replication/test_simulation.py -n $(TEST_PROCESSES) -k "acknowledged or keeps_its" $(ARGS)

interop:  ## The tests with foreign clients only
	@tools/setup.sh dev
	@$(PYTHON_ENV) -m pytest tests/interop $(ARGS)

spark:  ## All tests with a real Spark, those of minutes included: clusters, killed drivers, executors and jobs
	@tools/setup.sh dev
	@IOTMQ_SPARK=all $(PYTHON_ENV) -m pytest -m "spark or spark_long" tests/integration $(ARGS)

spark-soak:  ## A stream of Spark from topic to topic under steady load (SOAK_SECONDS=1800): its memory stays flat, each row is there once
	@tools/setup.sh dev
	@IOTMQ_SPARK=all IOTMQ_SOAK_SECONDS=$(SOAK_SECONDS) $(PYTHON_ENV) -m pytest -s tests/integration/test_spark_soak.py $(ARGS)

scenarios:  ## Every load scenario for some seconds, against a gateway of its own
	@tools/setup.sh dev
	@IOTMQ_SCENARIOS=all $(PYTHON_ENV) -m pytest tests/integration/test_load_scenarios.py $(ARGS)

##@ Other

compile:  ## Compile the modules whose sources changed
	@tools/setup.sh compile

vendor:  ## Fetch what the pages of the console are made with, in the versions of tools/vendor (needs npm, or fetches it)
	@tools/setup.sh vendor

lock:  ## Renew requirements/dev.lock, the versions that are installed, from pyproject.toml (needs uv)
	@tools/lock.sh

reference:  ## Write the references of settings, metrics and the API into docs/
	@tools/setup.sh core
	@$(PYTHON_ENV) tools/blocking_stub.py
	@$(PYTHON_ENV) tools/write_reference.py
	@$(PYTHON_ENV) tools/dashboards.py

dashboards:  ## Write the dashboards and alerting rules of deploy/ from tools/dashboards.py and prometheus_rules.py
	@tools/setup.sh core
	@$(PYTHON_ENV) tools/dashboards.py
	@$(PYTHON_ENV) tools/prometheus_rules.py

clean:  ## Remove what was built; .venv stays (rm -r .venv build removes everything)
	@rm -rf build/cython build/lib* build/temp* build/demo build/pycache build/setup/compiled *.egg-info
	@rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis spark-warehouse
	@find iotmq loadtest -name '*.so' -delete
	@find iotmq loadtest tests -name __pycache__ -prune -exec rm -rf {} +
