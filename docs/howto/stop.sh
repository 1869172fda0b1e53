#!/bin/sh
# The hook that runs before the head's container is stopped, while Ray is still whole.
pid=$(cat /tmp/driver.pid) && kill -TERM "$pid" || exit 0
while kill -0 "$pid" 2>/dev/null; do sleep 1; done
sleep 10 # until the operator has seen that the job failed
