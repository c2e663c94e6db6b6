# usage: WORK=folder GGUF=teacher.gguf pipeline.sh sample|train|draft [seconds]
set -e
: "${WORK:=work}" "${OUT:=$WORK/out}"
export PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
case $1 in
sample)
  python3 sample.py "$GGUF" "$WORK/raw" "${2:-140}" 8192
  python3 build.py "$WORK/raw" "$WORK/data" 4096 1025 "$GGUF" ;;
train) python3 train.py "$WORK/data" "$WORK/ck" "${2:-490}" 128 ;;
draft) python3 draft.py "$WORK/data" "$WORK/ck" "$OUT" "${2:-42}" ;;
esac
