#!/bin/bash
# Runs the driver, and asks it to stop when the machine is to be reclaimed: spot.sh aws|gcp|azure
cloud=$1
metadata=http://169.254.169.254

ask() { curl -sf -m 2 "$@"; }

is_reclaimed() {
    local token
    case $cloud in
        aws)
            token=$(ask -X PUT -H "X-aws-ec2-metadata-token-ttl-seconds: 60" "$metadata/latest/api/token") &&
                ask -H "X-aws-ec2-metadata-token: $token" "$metadata/latest/meta-data/spot/instance-action"
            ;;
        gcp) ask -H "Metadata-Flavor: Google" "$metadata/computeMetadata/v1/instance/preempted" | grep TRUE ;;
        azure) ask -H "Metadata: true" "$metadata/metadata/scheduledevents?api-version=2020-07-01" | grep Preempt ;;
    esac >/dev/null
}

python tune_job.py &
driver=$!

asked=
stop() { # once: a second signal would tell the driver to skip the last checkpoints
    [ "$asked" ] || kill -TERM "$driver" 2>/dev/null
    asked=yes
}
trap stop TERM

until is_reclaimed; do
    kill -0 "$driver" 2>/dev/null || break
    sleep 2 &
    wait -n "$driver" $!
done
stop

# A signal that is trapped ends `wait` before the driver has ended.
while kill -0 "$driver" 2>/dev/null; do wait "$driver"; done
wait "$driver"
