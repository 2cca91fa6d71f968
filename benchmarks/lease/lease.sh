#!/bin/bash
# The steps of a lease: lease.sh pack here, then setup|warm|part|go|wait on the lent machine; for a
# study over tasks, which needs no text, pack-tasks here, then setup|tasks|wait N tasks; for several
# GPUs pack-tasks here, then setup|scaling|compiled; for a model that somebody else trained,
# pack-pretrained here, then setup|warm-pretrained|part|pretrained|wait N pretrained (README.md).
# WORK holds everything there; LEASE is the folder that travels.
# In the repository's root: pack: LEASE, CORPUS, STUDY, PE_CACHE, PYTHON; pack-tasks: LEASE, PYTHON;
# pack-pretrained: LEASE, CORPUS, MODEL, PE_CACHE, PYTHON (with the gguf package for a gguf file)
NO_WEIGHTS='--exclude=checkpoints --exclude=checkpoint --exclude=best --exclude=.*lock --exclude=tokenizer'
if [ "$1" = pack ] || [ "$1" = pack-tasks ] || [ "$1" = pack-pretrained ]; then
  set -e
  mkdir -p "$LEASE/whl"
  rm -f "$LEASE/records.tgz" # of an earlier pack
  cp benchmarks/lease/*.py benchmarks/lease/lease.sh "$LEASE/"
  git archive --format=tar.gz -o "$LEASE/code.tar.gz" HEAD pe studies ':(glob)benchmarks/*.py' benchmarks/speed
  git rev-parse HEAD >"$LEASE/commit"
  echo "$STUDY" >"$LEASE/study"
  [ "$1" = pack ] && (set -f; $PYTHON "$LEASE/runner.py" --dry-run $STUDY) # an unknown run is found here, not there
  names='pydantic|pydantic-core|annotated-types|filelock|typing-inspection'
  names="$names|typer|annotated-doc|shellingham|click|rich|tabulate|markdown-it-py|mdurl|pygments"
  pinned=$(grep -iE "^($names)==" \
    requirements-lock.txt | cut -d' ' -f1)
  [ "$1" = pack-pretrained ] && pinned="$pinned gguf"
  $PYTHON -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 \
    --implementation cp --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 \
    --platform manylinux2014_x86_64 -d "$LEASE/whl" $pinned
  [ "$1" = pack-tasks ] && du -sb "$LEASE" && exit
  [ "$1" = pack-pretrained ] && [ -d runs/pretrained ] && tar -czf "$LEASE/records.tgz" $NO_WEIGHTS runs/pretrained
  [ "$1" = pack-pretrained ] && { $PYTHON benchmarks/lease/pretrained.py pack "$PE_CACHE" "$CORPUS" \
    "$MODEL" "$LEASE.parts" "$LEASE"; du -sb "$LEASE" "$LEASE.parts"/*; exit; }
  $PYTHON benchmarks/lease/tokens.py pack "$PE_CACHE" "$CORPUS" 16384 "$LEASE.parts" "$LEASE"
  du -sb "$LEASE" "$LEASE.parts"/*
  exit
fi
export WORK=${WORK:-/tmp/lease} PYTHON=${PYTHON:-python3}
mkdir -p "$WORK/tree" "$WORK/parts"
export PYTHONPATH=$WORK/code:$WORK/site PE_CACHE=$WORK/cache TORCHINDUCTOR_CACHE_DIR=$WORK/inductor
export TRITON_CACHE_DIR=$WORK/triton PYTHONUNBUFFERED=1 OMP_NUM_THREADS=4
[ -f "$WORK/commit" ] && export PE_COMMIT=$(cat "$WORK/commit")
[ -f "$WORK/study" ] && export STUDY=$(cat "$WORK/study")
case $1 in warm|go|later|later-now) set -f ;; esac # a word such as paper/rope-* is for the runner
FROM=$PWD # paths of what travelled start there
cd "$WORK/tree" || exit 1
case $1 in
setup) # LEASE=folder that travelled
  case $LEASE in /*) ;; *) LEASE=$FROM/$LEASE ;; esac
  cp "$LEASE"/*.py "$LEASE"/lease.sh "$LEASE"/commit "$LEASE"/study "$WORK"/ || exit 1
  date +%s >"$WORK/begun"
  [ -d "$LEASE/config" ] && cp -r "$LEASE/config" "$WORK/"
  [ -f "$LEASE/records.tgz" ] && { tar -xzf "$LEASE/records.tgz" -C "$WORK/tree" || exit 1; }
  mkdir -p "$WORK/code" "$WORK/site" && tar -xzf "$LEASE/code.tar.gz" -C "$WORK/code" || exit 1
  [ -d "$LEASE/compiled" ] && cat "$LEASE"/compiled/* | tar -xzf - -C "$WORK" # of an earlier lease
  ls "$LEASE"/whl/*.whl >/dev/null 2>&1 && { $PYTHON -m pip install -q --no-index --no-deps \
    --no-compile --no-cache-dir --upgrade --target "$WORK/site" "$LEASE"/whl/*.whl || exit 1; }
  $PYTHON -c "import pe, pe.study.worker; pe.train, pe.evaluate; print(pe.__file__)" ;;
warm) # compile what the first runs need while the data is on its way
  setsid nohup $PYTHON "$WORK/warm.py" $STUDY >"$WORK/warm.log" 2>&1 & echo $! >"$WORK/warm.pid" ;;
part) # $2: the folder of a part that travelled with this call
  case $2 in /*) part=$2 ;; *) part=$FROM/$2 ;; esac
  cp -r "$part"/* "$WORK/parts/" || exit 1
  ls -l "$WORK/parts" ;;
go) # all parts are in $WORK/parts
  [ -f "$WORK/warm.pid" ] && kill -9 -- -"$(cat "$WORK/warm.pid")" 2>/dev/null
  $PYTHON "$WORK/tokens.py" place "$WORK/parts" "${CORPUS:-corpus}" 16384 || exit 1
  setsid nohup $PYTHON "$WORK/runner.py" $STUDY $MORE \
    >"$WORK/runner.log" 2>&1 & echo $! >"$WORK/runner.pid" ;;
later) # as go, after warm, tests and FIRST (a command that has the GPUs to itself); END: no run goes on so many seconds after setup
  setsid nohup bash "$WORK/lease.sh" later-now >"$WORK/later.log" 2>&1 & echo $! >"$WORK/later.pid" ;;
later-now)
  for before in warm tests; do
    while [ -f "$WORK/$before.pid" ] && kill -0 "$(cat "$WORK/$before.pid")" 2>/dev/null; do sleep 1; done
  done
  mkdir -p "$WORK/first"
  (cd "$WORK/code" && FIRST_OUT=$WORK/first bash -c "$FIRST") || echo "FIRST ended with $?"
  MORE="$MORE --until $((END - $(date +%s) + $(cat "$WORK/begun")))" bash "$WORK/lease.sh" go ;;
tasks) # TASKS of studies/tasks, MORE, RECORDS: records.tgz of an earlier lease, to go on from
  [ -n "$RECORDS" ] && { tar -xzf "$FROM/$RECORDS" -C "$WORK/tree" runs || exit 1; }
  export PE_RUNS=$WORK/tree/runs OMP_NUM_THREADS=1
  mkdir -p "$PE_RUNS"
  setsid nohup $PYTHON -m pe.tasks.study ${TASKS:-core} $MORE \
    >"$WORK/tasks.log" 2>&1 & echo $! >"$WORK/tasks.pid" ;;
warm-pretrained) # TRIALS: a study of studies/pretrained; compile and time its training meanwhile
  setsid nohup $PYTHON "$WORK/pretrained.py" warm "${TRIALS:-smollm2}" "$WORK/config" \
    "$WORK/arguments" $MINI >"$WORK/warm.log" 2>&1 & echo $! >"$WORK/warm.pid" ;;
pretrained) # all parts are in $WORK/parts; TRIALS, MORE; MINI=--mini to rehearse
  $PYTHON "$WORK/pretrained.py" place "$WORK/parts" "${CORPUS:-python-packages}" "$WORK/models" || exit 1
  while kill -0 "$(cat "$WORK/warm.pid")" 2>/dev/null; do sleep 1; done
  cat "$WORK/warm.log"
  setsid nohup $PYTHON -m pe.pretrained.study "${TRIALS:-smollm2}" $MINI \
    --model "$(ls -d "$WORK"/models/*)" $(cat "$WORK/arguments") $MORE \
    >"$WORK/pretrained.log" 2>&1 & echo $! >"$WORK/pretrained.pid" ;;
speed) # MORE: options of pe speed; a record that travelled with the tree is continued
  mkdir -p "$WORK/tree/runs" && cp -r "$FROM/runs/speed" "$WORK/tree/runs/" || exit 1
  PE_COMMAND="pe speed $MORE" setsid nohup $PYTHON -c 'from pe.cli import main; main()' speed $MORE \
    >"$WORK/speed.log" 2>&1 & echo $! >"$WORK/speed.pid" ;;
tests) # MORE: options of pytest, such as -k cope; from a copy, because each call renews the tree
  mkdir -p "$WORK/checked" && cp -r "$FROM/tests" "$FROM/pyproject.toml" "$WORK/checked/" || exit 1
  cd "$WORK/checked" || exit 1
  PE_TEST_GPU=1 OMP_NUM_THREADS=1 setsid nohup $PYTHON -P -m pytest --noconftest -o addopts=-q \
    -n "${PE_WORKERS:-6}" tests/test_gpu.py $MORE >"$WORK/tests.log" 2>&1 & echo $! >"$WORK/tests.pid" ;;
scaling) # MORE: options of scaling.py, whose record goes to $OUT as it grows
  $PYTHON "$WORK/code/benchmarks/scaling.py" --out "$OUT/scaling.json" $MORE 2>&1 | tee "$OUT/scaling.log" ;;
compiled) # what the compilers made, in files of 15 MB, for the next lease of such a machine
  tar -czf - -C "$WORK" $(cd "$WORK" && ls -d inductor triton 2>/dev/null) | split -b 15000000 - "$OUT/compiled-"
  ls -l "$OUT"/compiled-* ;;
wait) # $2 seconds at most for $3, runner, tasks, speed, tests or pretrained; records go to $OUT every half minute, so that none is lost
  end=$((SECONDS + $2)) what=${3:-runner}
  while :; do
    tar -czf "$WORK/records.tgz" $NO_WEIGHTS -C "$WORK/tree" runs -C "$WORK" \
      $(cd "$WORK" && ls -d {runner,tasks,pretrained,speed,warm,tests,later}.log first 2>/dev/null) 2>/dev/null
    cp "$WORK/records.tgz" "$OUT/.new" && mv "$OUT/.new" "$OUT/records.tgz"
    grep -qs 'the end$' "$WORK/$what.log" && break
    kill -0 "$(cat "$WORK/$what.pid" 2>/dev/null)" 2>/dev/null ||
      kill -0 "$(cat "$WORK/later.pid" 2>/dev/null)" 2>/dev/null || break
    [ $SECONDS -ge $end ] && break
    left=$((end - SECONDS)); sleep $((left < 25 ? (left > 0 ? left : 1) : 25))
  done
  nvidia-smi --query-gpu=utilization.gpu,memory.used --format=csv,noheader 2>/dev/null
  df -h "$WORK" | tail -1; uptime; cat "$WORK/later.log" "$WORK/$what.log" 2>/dev/null ;;
esac
