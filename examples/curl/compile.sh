#!/usr/bin/env bash
# Compile on a server with curl and jq alone, from upload to download:
#   QB_SERVER=http://127.0.0.1:8000 ./compile.sh MODEL.onnx CALIBRATION_FOLDER DEVICE OUTPUT.mxq
set -euo pipefail
qb() { curl -fsSL ${QB_TOKEN:+-H "Authorization: Bearer $QB_TOKEN"} "$@"; }
model=$(qb -F "file=@$1" "$QB_SERVER/v1/models" | jq -r .id)
samples=$(tar -czf - -C "$2" . | qb -F "file=@-;filename=samples.tar.gz" "$QB_SERVER/v1/calibrations" | jq -r .id)
request=$(jq -n '{type: "compile", model_id: $ARGS.positional[0], calibration_id: $ARGS.positional[1], target_device: $ARGS.positional[2]}' --args "$model" "$samples" "$3")
job=$(qb -H 'Content-Type: application/json' -d "$request" "$QB_SERVER/v1/jobs" | jq -r .id)
until state=$(qb "$QB_SERVER/v1/jobs/$job?wait=30" | jq -r .state); [[ $state != queued && $state != running ]]; do :; done
mxq=$(qb "$QB_SERVER/v1/jobs/$job" | jq -r '.artifacts[] | select(.kind == "mxq") | .id + " " + .sha256')
[[ $state == succeeded ]] || { qb "$QB_SERVER/v1/jobs/$job" | jq .error >&2; exit 1; }
qb -o "$4.part" "$QB_SERVER/v1/artifacts/${mxq% *}/content"
sha256sum --check --quiet <<<"${mxq#* }  $4.part" && mv "$4.part" "$4"
